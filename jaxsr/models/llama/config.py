"""The one configuration of the Llama and Qwen3 families, and how `config.json` states it.

Field names are Hugging Face's, so that a checkpoint's own file is the documentation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from jaxsr.errors import InputError
from jaxsr.field_values import from_values
from jaxsr.interop.fields import check_fields, number

Architecture = Literal["llama", "qwen3"]
ARCHITECTURES = get_args(Architecture)
# A damaged file's numbers must not build networks without end: the largest models have 126 layers.
_MOST_LAYERS = 4096


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the slow rotary frequencies to a longer context."""

    factor: float = number(least=1)
    """Divisor of frequencies slower than `low_freq_factor`."""
    low_freq_factor: float
    """Turns within the original context below which a frequency is divided whole."""
    high_freq_factor: float
    """Turns within the original context above which a frequency is left alone."""
    original_max_position_embeddings: int = number(least=1)
    """Context, in tokens, that the model was first trained on."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise InputError(
                "rope scaling needs 0 < low_freq_factor < high_freq_factor, "
                f"got {self.low_freq_factor} and {self.high_freq_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Sizes and constants of one network; checked when built, before any weight is read."""

    model_type: Architecture = "llama"
    """`llama`, or `qwen3`, which normalises queries and keys per head."""
    vocab_size: int = number(least=1)
    """Tokens that the embedding knows."""
    hidden_size: int = number(least=1)
    """Features of the residual stream."""
    intermediate_size: int = number(least=1)
    """Features between the gate and the down projection."""
    num_hidden_layers: int = number(least=1, most=_MOST_LAYERS)
    """Blocks."""
    num_attention_heads: int = number(least=1)
    """Query heads."""
    num_key_value_heads: int = number(least=1)
    """Key and value heads, each shared by an equal number of query heads."""
    head_dim: int = number(least=1)
    """Features per head; Qwen3's is not `hidden_size / num_attention_heads`."""
    max_position_embeddings: int = number(least=1)
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
        check_fields(self)
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
    def from_hf(cls, stated: Mapping[str, Any]) -> "LlamaConfig":
        """Reads the fields of a `config.json`.

        Raises:
          ValueError: a field is missing, or asks for something that is not computed here.
        """
        if (act := stated.get("hidden_act", "silu")) != "silu":
            raise InputError(f"config.json has hidden_act {act!r}; only silu is computed here")
        if stated.get("use_sliding_window"):
            raise InputError("config.json has use_sliding_window; only full attention is computed")
        kind, size = stated.get("model_type"), stated.get("hidden_size")
        heads = stated.get("num_attention_heads")
        each = size // heads if isinstance(size, int) and isinstance(heads, int) and heads else 1
        # transformers 5 moved both rope fields into one.
        rope = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
        theta = isinstance(rope, Mapping) and rope.get("rope_theta")
        values = {
            "model_type": kind,
            # transformers' own defaults of each family.
            "num_key_value_heads": heads if isinstance(heads, int) else 1,
            "head_dim": 128 if kind == "qwen3" else each,
            "max_position_embeddings": 32768 if kind == "qwen3" else 2048,
            **_of(cls, stated),
            **({"rope_theta": theta} if theta else {}),
            "rope_scaling": _scaling(rope),
        }
        return from_values(cls, values, prefix="config.json's ")


def _of(kind: type, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields; a null is its default."""
    names = (field.name for field in fields(kind))
    return {name: stated[name] for name in names if stated.get(name) is not None}


def _scaling(rope: Any) -> Any:
    """The fields of `Llama3Scaling`, or None for frequencies as they are."""
    if not isinstance(rope, Mapping):
        return rope  # refused with all values of another type
    kind = rope.get("rope_type", rope.get("type", "default"))
    # Dynamic frequencies are the default ones up to the context, which no text exceeds.
    if kind in ("default", "dynamic"):
        return None
    if kind != "llama3":
        raise InputError(
            f"config.json has rope type {kind!r}; only default, dynamic and llama3 are computed "
            "here"
        )
    return _of(Llama3Scaling, rope)
