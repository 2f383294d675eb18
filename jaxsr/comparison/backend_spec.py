"""One side of a comparison: engine, platform, dtype and precision."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from jaxsr.errors import InputError

Engine = Literal["jax", "torch"]
Platform = Literal["auto", "tpu", "cuda", "cpu"]
Dtype = Literal["float32", "bfloat16", "float64"]
Precision = Literal["default", "high", "highest", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class BackendSpec:
    """Checked when built, before any device is touched."""

    engine: Engine = "jax"
    """Who computes."""
    platform: Platform = "auto"
    """Where; `auto` takes the first that the engine finds: TPU (JAX only), CUDA, CPU."""
    dtype: Dtype = "float32"
    """Of weights, activations and cache. float64 is torch's alone, as a reference."""
    precision: Precision = "highest"
    """Of float32 products; `default` lets TPUs multiply in bfloat16 and GPUs in TF32, the
    likeliest reason why two platforms differ. `bfloat16` does on any platform what TPUs do."""

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value not in get_args(kind):
                raise InputError(f"{name} must be one of {', '.join(get_args(kind))}, got {value}")
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
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals:
                name, value = "engine", name
            if name not in _KINDS or not value:
                raise InputError(
                    f"{text!r} is no side of a comparison: {part.strip()!r} is none of "
                    f"{', '.join(f'{n}=' for n in _KINDS)}; write torch, or "
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


_KINDS = {"engine": Engine, "platform": Platform, "dtype": Dtype, "precision": Precision}
