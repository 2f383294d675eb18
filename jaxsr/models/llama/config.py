"""The one configuration of the Llama and Qwen3 families, and how `config.json` states it.

Field names are Hugging Face's, so that a checkpoint's own file is the documentation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxsr.errors import InputError, one_line

ARCHITECTURES = ("llama", "qwen3")
# A damaged file's numbers must not build networks without end: the largest models have 126 layers.
_MOST_LAYERS = 4096
_LARGEST = 2**31


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the slow rotary frequencies to a longer context."""

    factor: float
    """Divisor of frequencies slower than `low_freq_factor`."""
    low_freq_factor: float
    """Turns within the original context below which a frequency is divided whole."""
    high_freq_factor: float
    """Turns within the original context above which a frequency is left alone."""
    original_max_position_embeddings: int
    """Context, in tokens, that the model was first trained on."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"rope scaling's {name} must be a number, got {value!r}")
        if self.factor < 1:
            raise InputError(f"rope factor must be at least 1, got {self.factor}")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise InputError(
                "rope scaling needs 0 < low_freq_factor < high_freq_factor, "
                f"got {self.low_freq_factor} and {self.high_freq_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Sizes and constants of one network; checked when built, before any weight is read."""

    model_type: str = "llama"
    """`llama`, or `qwen3`, which normalises queries and keys per head."""
    vocab_size: int
    """Tokens that the embedding knows."""
    hidden_size: int
    """Features of the residual stream."""
    intermediate_size: int
    """Features between the gate and the down projection."""
    num_hidden_layers: int
    """Blocks."""
    num_attention_heads: int
    """Query heads."""
    num_key_value_heads: int
    """Key and value heads, each shared by an equal number of query heads."""
    head_dim: int
    """Features per head; Qwen3's is not `hidden_size / num_attention_heads`."""
    max_position_embeddings: int
    """Longest context in tokens, prompt and output together."""
    rms_norm_eps: float = 1e-6
    """Added to the mean square before the root."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: Llama3Scaling | None = None
    """Llama 3.1's scaling; None leaves the frequencies as `rope_theta` gives them."""
    tie_word_embeddings: bool = False
    """Whether the head is the embedding itself."""
    attention_bias: bool = False
    """Whether the attention's four projections have a bias."""
    mlp_bias: bool = False
    """Whether the MLP's three projections have a bias."""

    def __post_init__(self) -> None:
        if self.model_type not in ARCHITECTURES:
            raise InputError(
                f"model_type {self.model_type!r} is not supported; jaxsr generates with "
                f"{' and '.join(ARCHITECTURES)} models"
            )
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            value = getattr(self, name)
            most = _MOST_LAYERS if name == "num_hidden_layers" else _LARGEST
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise InputError(f"{name} must be a whole number from 1 to {most}, got {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise InputError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise InputError(f"head_dim must be even for rotary positions, got {self.head_dim}")

    @property
    def short_context(self) -> None:
        """The rotary frequencies do not depend on how long a text is; see `LibraryConfig`."""
        return None

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head before their rotation."""
        return self.model_type == "qwen3"

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any]) -> "LlamaConfig":
        """Reads the fields of a `config.json`.

        Raises:
          ValueError: a field is missing, or asks for something that is not computed here.
        """
        try:
            return cls._from_fields(fields)
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(
                f"config.json has a value of another type than it should ({one_line(error)}); get "
                "it again"
            ) from error

    @classmethod
    def _from_fields(cls, fields: Mapping[str, Any]) -> "LlamaConfig":
        model_type = fields.get("model_type")
        if model_type not in ARCHITECTURES:
            raise InputError(
                f"config.json has model_type {model_type!r}; jaxsr generates with "
                f"{' and '.join(ARCHITECTURES)} models"
            )
        if (act := fields.get("hidden_act", "silu")) != "silu":
            raise InputError(f"config.json has hidden_act {act!r}; only silu is computed here")
        if fields.get("use_sliding_window"):
            raise InputError("config.json has use_sliding_window; only full attention is computed")
        needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
        needed = (*needed, "num_attention_heads")
        if missing := [name for name in needed if name not in fields]:
            raise InputError(f"config.json lacks {', '.join(missing)}")
        heads = fields["num_attention_heads"]
        if not isinstance(heads, int) or not isinstance(fields["hidden_size"], int) or heads < 1:
            raise InputError("config.json needs whole numbers for hidden_size and the heads")
        # transformers 5 moved both rope fields into one.
        rope = dict(fields.get("rope_parameters") or fields.get("rope_scaling") or {})
        return cls(
            model_type=model_type,
            **{name: fields[name] for name in needed},
            num_key_value_heads=fields.get("num_key_value_heads") or heads,
            # transformers' own defaults of each family.
            head_dim=fields.get("head_dim")
            or (128 if model_type == "qwen3" else fields["hidden_size"] // heads),
            max_position_embeddings=fields.get(
                "max_position_embeddings", 32768 if model_type == "qwen3" else 2048
            ),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0),
            rope_scaling=_scaling(rope),
            tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
            attention_bias=bool(fields.get("attention_bias", False)),
            mlp_bias=bool(fields.get("mlp_bias", False)),
        )


def _scaling(rope: Mapping[str, Any]) -> Llama3Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise InputError(
            f"config.json has rope type {kind!r}; only default and llama3 are computed here"
        )
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    if missing := [name for name in names if name not in rope]:
        raise InputError(f"config.json's llama3 rope scaling lacks {', '.join(missing)}")
    return Llama3Scaling(**{name: rope[name] for name in names})
