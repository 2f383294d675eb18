"""Names of GGUF files, which may come in parts: NAME-00001-of-00003.gguf."""

import re
from collections.abc import Iterable
from pathlib import Path

from jaxsr.errors import InputError, printable

_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")


def find_gguf(path: Path) -> Path:
    """The GGUF file in a folder that has one and no `config.json`; any other path as it is.

    Raises:
      InputError: the folder has several that are not parts of one.
    """
    if not path.is_dir() or (path / "config.json").exists():
        return path
    names = first_files(p.name for p in path.iterdir())
    if len(names) > 1:
        listed = ", ".join(printable(name, 60) for name in names[:4])
        raise InputError(f"{path} has {len(names)} GGUF files ({listed}); give one of them")
    return path / names[0] if names else path


def first_files(names: Iterable[str]) -> list[str]:
    """The GGUF files of language models among these: of one in parts the first part alone."""
    # The encoder of a model's images may be next to it.
    files = (n for n in names if n.endswith(".gguf") and not n.startswith("mmproj"))
    return sorted({part_names(name)[0] for name in files})


def part_names(name: str) -> list[str]:
    """The names of all parts of the file that this is a part of; of any other file its own."""
    part = _PART.fullmatch(name)
    if part is None:
        return [name]
    return [f"{part[1]}-{i:05}-of-{part[2]}.gguf" for i in range(1, int(part[2]) + 1)]
