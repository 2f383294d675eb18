"""The options that every command shares for compiling ahead of time instead of running."""

from dataclasses import dataclass
from pathlib import Path

from jaxsr.errors import InputError


@dataclass(frozen=True, kw_only=True)
class AheadOptions:
    """Base of the commands' configurations."""

    aot: str | None = None
    """Compile for this TPU topology (v5e:2x4, v6e:16x16, …) instead of running; needs no TPU."""
    aot_json: Path | None = None
    """With aot: also write the report to this file."""
    aot_save: Path | None = None
    """With aot: also keep the compiled programs in this folder, a compile cache for TPU hosts."""
    aot_largest: bool = False
    """With aot: also search the largest batch that fits; compiles several times."""

    def __post_init__(self) -> None:
        given = [n for n in ("aot_json", "aot_save", "aot_largest") if getattr(self, n)]
        if given and self.aot is None:
            raise InputError(f"{given[0]} needs aot, the topology to compile for: --aot v5e:2x4")
