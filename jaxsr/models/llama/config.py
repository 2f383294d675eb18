"""The one configuration of the Llama and Qwen3 families, and how `config.json` states it.

Field names are Hugging Face's, so that a checkpoint's own file is the documentation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from jaxsr.errors import InputError, printable
from jaxsr.field_values import from_values
from jaxsr.interop.fields import check_fields, number

Architecture = Literal["llama", "qwen3"]
ARCHITECTURES = get_args(Architecture)
_ROPE = ("rope_scaling", "rope_parameters")
_ROPE_FIELDS = (
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings",
)  # fmt: skip
_ROPE_TYPES = ("default", "dynamic", "llama3")
"""Dynamic frequencies are the default ones up to the context, which no text exceeds."""
_ONLY: dict[str, Any] = {
    "hidden_act": "silu", "use_sliding_window": False, "sliding_window": None,
    "rope_interleaved": False, "is_llama_config": True, "is_decoder": True,
    "is_encoder_decoder": False, "add_cross_attention": False, "pruned_heads": {},
}  # fmt: skip
"""Fields that the networks here compute for one value."""
_WITHOUT_PART = frozenset(
    {
        "_name_or_path", "_attn_implementation_autoset", "architectures", "attention_dropout",
        "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id",
        "finetuning_task", "id2label", "initializer_range", "label2id", "max_window_layers",
        "output_attentions", "output_hidden_states", "output_scores", "pad_token_id",
        "pretraining_tp", "problem_type", "quantization_config", "return_dict",
        "return_dict_in_generate", "task_specific_params", "tf_legacy_loss", "tokenizer_class",
        "torch_dtype", "torchscript", "transformers.js_config", "transformers_version",
        "transformers_weights", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
    }
)  # fmt: skip
"""Fields that have no part in what a network computes, or that other code reads."""
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
    rope_theta: float = number(10000.0, above=0)
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
        if field := foreign_field(stated):
            raise InputError(
                f"config.json has {printable(field)}, which jaxsr's own network does not compute; "
                "--implementation transformers may"
            )
        kind, size = stated.get("model_type"), stated.get("hidden_size")
        heads = stated.get("num_attention_heads")
        each = size // heads if isinstance(size, int) and isinstance(heads, int) and heads else 1
        rope = _rope(stated)
        theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
        values = {
            "model_type": kind,
            # transformers' own defaults of each family.
            "num_key_value_heads": heads if isinstance(heads, int) else 1,
            "head_dim": 128 if kind == "qwen3" else each,
            "max_position_embeddings": 32768 if kind == "qwen3" else 2048,
            **_of(cls, stated),
            **({} if theta is None else {"rope_theta": theta}),
            "rope_scaling": _scaling(rope),
        }
        return from_values(cls, values, prefix="config.json's ")


def _of(kind: type, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields; a null is its default."""
    names = (field.name for field in fields(kind))
    return {name: stated[name] for name in names if stated.get(name) is not None}


def _rope(stated: Mapping[str, Any]) -> Any:
    """The rotary fields: transformers 5 moved them into one, and takes the older one first."""
    return next((stated[name] for name in _ROPE if stated.get(name)), {})


def _scaling(rope: Any) -> Any:
    """The fields of `Llama3Scaling`, or None for frequencies as they are."""
    if not isinstance(rope, Mapping):
        return rope  # refused with all values of another type
    return _of(Llama3Scaling, rope) if _rope_type(rope) == "llama3" else None


def _rope_type(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type")) or "default"


def foreign_field(stated: Mapping[str, Any]) -> str | None:
    """A field of a Llama's or Qwen3's `config.json` that the networks here do not compute.

    Returns:
      Its name and value, or None.
    """
    return next(_foreign_fields(stated), None)


def _foreign_fields(stated: Mapping[str, Any]) -> Iterator[str]:
    rope = _rope(stated)
    if isinstance(rope, Mapping):
        if (kind := _rope_type(rope)) not in _ROPE_TYPES:
            yield f"the rope type {kind!r:.60}"
        others = {name: value for name, value in rope.items() if name not in _ROPE_FIELDS}
        yield from (f"the rope field {n}={v!r:.60}" for n, v in others.items() if v is not None)
    known = {field.name for field in fields(LlamaConfig)} | _WITHOUT_PART | {*_ROPE, "layer_types"}
    if stated.get("model_type") == "qwen3":
        known |= {"sliding_window"}  # transformers uses it only with use_sliding_window
    for name, value in stated.items():
        if value is not None and name not in known and (name, value) not in _ONLY.items():
            yield f"{name}={value!r:.60}"
    kinds = stated.get("layer_types")
    for kind in kinds if isinstance(kinds, list) else ():
        if kind != "full_attention":
            yield f"a layer type {kind!r:.60}"
