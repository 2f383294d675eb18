"""A causal language model of transformers behind the calls of `jaxsr.models.llama.network`."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError, one_line
from jaxsr.interop.sharding_rules import Rules, planned_rules
from jaxsr.models.cache_entries import has_slots
from jaxsr.models.hugging_face.cache import (
    Entries,
    close_cache,
    mask_of_appended,
    mask_of_slots,
    needs_order,
    open_cache,
)
from jaxsr.models.llama.network import wide
from jaxsr.models.thread_patch import patched

_NO_LIMIT = 2**31 - 1
_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""Forward's argument for the cache: since transformers 5.24; before it of most families, and of
recurrent ones."""


@dataclass(frozen=True, kw_only=True)
class LibraryConfig:
    """A model's facts for generation, and all values of its configuration."""

    model_type: str
    vocab_size: int
    """Tokens that the embedding knows."""
    max_position_embeddings: int
    """Tokens of context; the largest integer if it is unlimited."""
    num_key_value_heads: int
    """Heads of most blocks; 1 where the configuration does not say."""
    keeps_states: bool
    """Whether blocks keep states of convolutions or recurrences."""
    short_context: int | None
    """Tokens up to which LongRoPE's short factors turn keys and queries, all of them; None where
    the rotary frequencies do not depend on how long a text is."""
    values: str
    """The configuration as JSON."""

    @classmethod
    def of(cls, config: Any, *, keeps_states: bool) -> "LibraryConfig":
        text = config.get_text_config(decoder=True)
        return cls(
            keeps_states=keeps_states,
            model_type=config.model_type,
            vocab_size=text.vocab_size,
            max_position_embeddings=_context(text),
            short_context=_short_context(text),
            num_key_value_heads=_kv_heads(text),
            values=config.to_json_string(use_diff=False),
        )

    def check_takes_back(self) -> None:
        """Refuses where tokens that were fed cannot be taken back, as wrong proposals are.

        Raises:
          InputError: a state is of all tokens that were fed.
        """
        if self.keeps_states:
            raise InputError(
                f"{self.model_type} keeps states of convolutions or recurrences, from which "
                "proposed tokens cannot be taken back; leave --prompt-lookup and --draft-model out"
            )


class LibraryLM(nn.Module):
    """One forward of the model's own code that continues the cache.

    Rows are padded on the left, so that all rows fill the same slots.
    """

    def __init__(self, inner: Any) -> None:
        """Args:
        inner: result of `AutoModelForCausalLM`.

        Raises:
          InputError: its cache is not transformers' `Cache`.
        """
        super().__init__()
        for name, module in list(inner.named_modules()):
            if type(module).__name__ == "PhimoeRotaryEmbedding":
                inner.set_submodule(name, _PhimoeRotary(module))
        self.inner = inner
        accepted = inspect.signature(inner.forward).parameters
        self._takes = {*accepted}
        names = [n for n in _CACHE_NAMES if n in accepted]
        if not names:
            raise InputError(
                f"{inner.config.model_type} keeps its past in a way of its own, not in "
                "transformers' Cache; generate with transformers itself"
            )
        self._cache_name = names[0]
        cache = open_cache(inner.config, None, 0)  # refuses unknown blocks
        self.config = LibraryConfig.of(inner.config, keeps_states=cache.keeps_states())
        self._windows, self.needs_order = cache.windows(), needs_order(inner.config)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return self.inner.dtype

    @torch.no_grad()
    def check_continues(self) -> None:
        """Tries, in torch, that tokens after padding and one at a time give the same logits.

        Raises:
          InputError: they do not: an encoder sees the tokens to come, and some families count
            padding among their positions. Or the family's code fails with such a cache.
        """
        try:
            difference = self._continuing_error()
        except Exception as error:  # whatever a family's code raises
            raise InputError(
                f"{self.config.model_type}'s own code does not continue a cache of fixed size "
                f"({type(error).__name__}: {one_line(error)}); generate with transformers itself"
            ) from error
        if not difference <= self._allowed_error:
            encoder = getattr(self.inner.config, "is_decoder", True) is False
            remedy = 'set "is_decoder": true in config.json, or ' if encoder else ""
            raise InputError(
                f"{self.config.model_type} gives other logits where tokens come after padding and "
                f"one at a time (by {difference:.2g} of the largest): it sees tokens to come, or "
                f"counts padding among its positions; {remedy}generate with transformers itself"
            )

    @property
    def _allowed_error(self) -> float:
        return 1e-3 if self.dtype in (torch.float32, torch.float64) else 0.2

    def _continuing_error(self) -> float:
        """Largest difference of logits that a cache and padding make, of the largest logit."""
        device = next(self.parameters()).device
        tokens = torch.arange(4, 8, device=device)[None] % self.config.vocab_size
        at_once, _ = self(tokens)
        padded = torch.cat((tokens.new_zeros(1, 2), tokens[:, :3]), 1)
        first = torch.full((1,), 2, device=device)
        _, entries = self(padded, first_B=first, slots=8)
        filled = torch.tensor(5, device=device)
        continued, _ = self(tokens[:, 3:], entries, filled=filled, first_B=first)
        return float((continued - at_once).abs().max() / at_once.abs().max())

    def attention_features(self) -> int | None:
        """Features of a head, in torch's attention; None where the family's code computes it."""
        config = self.inner.config.get_text_config(decoder=True)
        if config._attn_implementation != "sdpa":
            return None
        heads, size = (getattr(config, n, None) for n in ("num_attention_heads", "hidden_size"))
        head_dim = size // heads if isinstance(heads, int) and isinstance(size, int) else None
        return getattr(config, "head_dim", None) or head_dim

    @torch.no_grad()
    def check_verifies(self) -> None:
        """Tries, in torch, that several tokens after a cache give the logits that they give in one
        text, which proposals of tokens need.

        Raises:
          InputError: they do not, or the family's code fails with them.
        """
        self.config.check_takes_back()
        refusal = f"{self.config.model_type}'s own code does not continue a cache by several tokens"
        remedy = "leave --prompt-lookup and --draft-model out"
        try:
            difference = self._verifying_error()
        except Exception as error:  # whatever a family's code raises
            raise InputError(
                f"{refusal} ({type(error).__name__}: {one_line(error)}); {remedy}"
            ) from error
        if not difference <= self._allowed_error:
            raise InputError(
                f"{refusal}: logits differ by {difference:.2g} of the largest; {remedy}"
            )

    def _verifying_error(self) -> float:
        """Largest difference of the logits of two tokens after three, of the largest logit."""
        device = next(self.parameters()).device
        tokens = torch.arange(4, 9, device=device)[None] % self.config.vocab_size
        at_once = torch.stack([self(tokens[:, :count])[0] for count in (4, 5)], 1)
        padded = torch.cat((tokens.new_zeros(1, 2), tokens[:, :3]), 1)
        first = torch.full((1,), 2, device=device)
        _, entries = self(padded, first_B=first)
        continued, _ = self(tokens[:, 3:], entries, first_B=first, length_B=first + 1)
        return float((continued - at_once).abs().max() / at_once.abs().max())

    def sharding_rules(self) -> Rules:
        """How weights are split over a mesh's `tensor` axis, from the configuration's plan.

        A head that is tied to the embedding is split by the vocabulary, as a plan splits one that
        is not: the plans name the head, whose weight has the embedding's name.
        """
        rules = {f"inner.{name}": style for name, style in planned_rules(self.inner).items()}
        embedding, head = self.inner.get_input_embeddings(), self.inner.get_output_embeddings()
        if getattr(head, "weight", None) is not getattr(embedding, "weight", rules):
            return rules
        tied = [n for n, module in self.inner.named_modules() if module in (embedding, head)]
        return {f"inner.{name}.weight": "colwise" for name in tied} | rules

    def program_key(self) -> list[tuple[str, str, str]]:
        """The dependencies of a traced program other than the tensors."""
        import transformers

        model = (type(self.inner).__qualname__, transformers.__version__, self.config.values)
        return [model, *(_settings(n, m) for n, m in self.named_modules() if _is_swapped(m))]

    @torch.no_grad()
    def cache_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each entry of a cache, (K, D) or a state's: without its rows and slots."""
        device = next(self.parameters()).device
        entries = self(torch.zeros((1, 2), dtype=torch.int64, device=device))[1]
        return {
            name: (t.shape[1], t.shape[3]) if has_slots(name) else tuple(t.shape[1:])
            for name, t in entries.items()
        }

    def cache_windows(self) -> dict[str, int]:
        """Entries of a cache that are rings, and the most slots of each.

        A block with a window of attention stores the entry of token slot s in slot s modulo the
        ring's size.
        """
        return self._windows

    def forward(
        self,
        tokens_BT: Tensor,
        cache: Mapping[str, Tensor] | None = None,
        *,
        filled: Tensor | None = None,
        first_B: Tensor | None = None,
        length_B: Tensor | None = None,
        slots: int | None = None,
        ahead: int = 0,
        aside: bool = False,
    ) -> tuple[Tensor, Entries]:
        """Feeds tokens and gives the logits after them.

        Args:
          tokens_BT: token ids; they take the slots from `filled` on.
          cache: of the tokens before, see `jaxsr.models.hugging_face.cache`; None if there are no
            such entries. Then T may be any number, with a cache it is 1.
          filled: slots that are filled, a scalar. Needed with `cache`, unless `length_B` is there.
          first_B: slot of each row's first true token, which has position 0.
          length_B: tokens of each row in `cache`, from slot `first_B` on; rings are turned so that
            they end in the last place, and so are the other entries if `needs_order`. Then T may be
            any number, the logits are (B, T, V), after each token, and of the cache the new tokens'
            entries alone are given, as with `aside`.
          slots: without `cache`, of the one that is returned. Default: T.
          ahead: slots that its rings have beyond their window.
          aside: give only the new token's entries of `cache`, (B, K, 1, D), to be written by the
            caller once all is read: a TPU would read and write the whole cache for them.

        Returns:
          Float32 logits (B, V) after the last token, and the cache with the tokens' entries.
        """
        batch, count = tokens_BT.shape
        device = tokens_BT.device
        if length_B is not None:
            assert cache is not None and first_B is not None
            return self._appended(tokens_BT, cache, first_B, length_B)
        start = torch.zeros((), dtype=torch.int64, device=device) if filled is None else filled
        slots_T = start + torch.arange(count, device=device)
        first_B1 = slots_T.new_zeros(batch, 1) if first_B is None else first_B[:, None]
        state = open_cache(self.inner.config, cache, 0 if cache is None else start, aside=aside)
        mask, positions = mask_of_slots(state, slots_T, first_B1), slots_T[None] - first_B1
        logits = self._logits(tokens_BT, mask, positions.clamp(min=0), state, keep=1)
        return logits[:, -1], close_cache(state, slots, ahead)

    def _appended(
        self, tokens_BT: Tensor, cache: Mapping[str, Tensor], first_B: Tensor, length_B: Tensor
    ) -> tuple[Tensor, Entries]:
        count = tokens_BT.shape[1]
        sizes = [t.shape[2] for n, t in cache.items() if has_slots(n)]
        state = open_cache(self.inner.config, cache, max(sizes, default=0), appended=count)
        mask = mask_of_appended(state, first_B, length_B, count)
        positions = length_B[:, None] + torch.arange(count, device=tokens_BT.device)
        # Proposals may pass the end of a table of positions; those that do are never accepted.
        positions = positions.clamp(max=self.config.max_position_embeddings - 1)
        logits = self._logits(tokens_BT, mask, positions, state, keep=count)
        return logits[:, -count:], close_cache(state)

    def _logits(
        self, tokens_BT: Tensor, mask: Tensor, positions: Tensor, state: Any, *, keep: int
    ) -> Tensor:
        options: dict[str, Any] = {
            "attention_mask": mask.to(torch.int64),
            "position_ids": positions,
            self._cache_name: state,
            "use_cache": True,
            "return_dict": True,
            "logits_to_keep": keep,
        }
        from transformers.integrations import sdpa_attention

        # Keys and values go to attention as they are cached, not repeated for every query head.
        with patched(sdpa_attention, use_gqa_in_sdpa=lambda *_: True):
            outputs = self.inner(
                tokens_BT, **{n: v for n, v in options.items() if n in self._takes}
            )
        return outputs.logits.to(wide(outputs.logits.dtype))


class _PhimoeRotary(nn.Module):
    """Phimoe's rotary embedding, whose scale follows from the longest text, without a branch.

    As its own code has it, the long texts' scale goes with the short ones' frequencies.
    """

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.config, self.rope_init_fn = rotary.config, rotary.rope_init_fn

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        inv_freq, scale = self.rope_init_fn(self.config)
        if "long_mscale" in (rope := self.config.rope_parameters):
            is_long = position_ids.max() + 1 > rope["original_max_position_embeddings"]
            scale = torch.where(is_long, float(rope["long_mscale"]), float(rope["short_mscale"]))
        angles = position_ids[..., None].float() * inv_freq.to(x.device).float()
        angles = torch.cat((angles, angles), -1)
        return (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)


def _context(config: Any) -> int:
    for name in ("max_position_embeddings", "max_seq_len"):
        if tokens := getattr(config, name, None):
            return tokens
    return _NO_LIMIT


def _short_context(config: Any) -> int | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" not in parameters:  # by the kind of block
        parameters = next((p for p in parameters.values() if _is_longrope(p)), {})
    if not _is_longrope(parameters):
        return None
    original = getattr(config, "original_max_position_embeddings", None)
    return parameters.get("original_max_position_embeddings") or original


def _is_longrope(parameters: Any) -> bool:
    return isinstance(parameters, Mapping) and parameters.get("rope_type") == "longrope"


def _kv_heads(config: Any) -> int:
    for name in ("num_key_value_heads", "num_attention_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads > 0:
            return heads
    return 1


def _is_swapped(module: nn.Module) -> bool:
    """Whether a layer is jaxsr's, put where the family's code had another."""
    return type(module).__module__.startswith("jaxsr.") and not isinstance(module, LibraryLM)


def _settings(name: str, module: nn.Module) -> tuple[str, str, str]:
    values = sorted((n, repr(v)) for n, v in vars(module).items() if not n.startswith("_"))
    return name, type(module).__qualname__, repr(values)
