"""One side of a comparison: engine, platform, dtype and precision."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from jaxsr.errors import InputError
from jaxsr.interop.fields import check_literals


@dataclass(frozen=True, kw_only=True)
class BackendSpec:
    """Checked when built, before any device is touched."""

    engine: Literal["jax", "torch"] = "jax"
    """Engine that computes."""
    platform: Literal["auto", "tpu", "cuda", "cpu"] = "auto"
    """Platform; auto takes the first that the engine finds: TPU (JAX only), CUDA, CPU."""
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """Dtype of weights, activations and cache. float64 is for torch alone, as a reference."""
    precision: Literal["default", "high", "highest", "bfloat16"] = "highest"
    """Precision of float32 products. default lets TPUs multiply in bfloat16 and GPUs in TF32, the
    likeliest reason why two platforms differ. bfloat16 (JAX) emulates a TPU on any platform."""

    def __post_init__(self) -> None:
        check_literals(self)
        if self.engine == "torch" and self.platform == "tpu":
            raise InputError("the torch engine runs on cpu or cuda; use engine=jax for a TPU")
        if self.engine == "torch" and self.precision == "bfloat16":
            raise InputError("precision bfloat16 is for engine=jax; torch has default and highest")
        if self.engine == "jax" and self.dtype == "float64":
            raise InputError("dtype float64 is for engine=torch; JAX runs without 64-bit numbers")

    def check_operations_alone(self) -> None:
        """Refuses a backend whose operations cannot run one by one.

        Raises:
          ValueError: operands are rounded, which works on whole programs only.
        """
        if self.precision == "bfloat16":
            raise InputError(
                "precision=bfloat16 takes whole programs: give it to the second side, --b, and "
                "leave --alone out"
            )

    @classmethod
    def parse(cls, text: str) -> "BackendSpec":
        """Reads `jax`, `torch,dtype=bfloat16` or `engine=jax,platform=cpu,precision=default`.

        Raises:
          ValueError: a part is unknown.
        """
        chosen: dict[str, Any] = {}
        names = [field.name for field in fields(cls)]
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            name, value = (name, value) if equals else ("engine", name)
            if name not in names or not value:
                raise InputError(
                    f"{text!r} is not a side of a comparison: {part.strip()!r} is none of "
                    f"{', '.join(f'{n}=' for n in names)}; write torch, or "
                    "engine=jax,dtype=bfloat16"
                )
            if name in chosen:
                raise InputError(f"{text!r} names its {name} twice")
            chosen[name] = value
        return cls(**chosen)

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in asdict(self).items())

    @property
    def short(self) -> str:
        """For headings."""
        where = "" if self.platform == "auto" else f" on {self.platform}"
        odd = "" if self.precision == "highest" else f", {self.precision} precision"
        return f"{self.engine} {self.dtype}{where}{odd}"


REFEREE = BackendSpec(engine="torch", platform="cpu", dtype="float64")
"""Shows which of two sides is more accurate."""
