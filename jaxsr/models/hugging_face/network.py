"""A causal language model of transformers behind the calls of `jaxsr.models.llama.network`."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from jaxsr.models.hugging_face.cache import Entries, close_cache, open_cache
from jaxsr.models.llama.network import wide


class LibraryLM(nn.Module):
    """One forward of the model's own code that continues the cache.

    Rows are padded on the left, so that all rows fill the same slots.
    """

    def __init__(self, inner: Any) -> None:
        """Args:
        inner: what `AutoModelForCausalLM` makes.
        """
        super().__init__()
        self.inner = inner
        accepted = inspect.signature(inner.forward).parameters
        self._takes = {*accepted}
        self._cache_name = "past_key_values" if "past_key_values" in accepted else "cache_params"

    def forward(
        self,
        tokens_BT: Tensor,
        cache: Mapping[str, Tensor] | None = None,
        *,
        filled: Tensor | None = None,
        first_B: Tensor | None = None,
        read_B: Tensor | None = None,
    ) -> tuple[Tensor, Entries]:
        """Feeds tokens and gives the logits after them.

        Args:
          tokens_BT: token ids; they take the slots from `filled` on.
          cache: of the tokens before, see `jaxsr.models.hugging_face.cache`; None where there are
            none. Then T may be any number, with a cache it is 1.
          filled: slots that are filled, a scalar. Needed with `cache`.
          first_B: slot of each row's first true token, which has position 0.
          read_B: index along T of the one token per row to return logits of; None: the last.

        Returns:
          Float32 logits (B, V), and the cache with the tokens' entries.
        """
        batch, count = tokens_BT.shape
        device = tokens_BT.device
        start = torch.zeros((), dtype=torch.int64, device=device) if filled is None else filled
        slots_T = start + torch.arange(count, device=device)
        first_B1 = slots_T.new_zeros(batch, 1) if first_B is None else first_B[:, None]
        state = open_cache(self.inner.config, cache, 0 if cache is None else start)
        spans = [t.shape[2] for n, t in (cache or {}).items() if n.endswith(".keys")]
        span = torch.arange(spans[0] if spans else count, device=device)
        mask_BS = span[None] >= first_B1
        if read_B is not None:
            # Padded on the right: tokens behind a row's last change nothing before them.
            mask_BS = mask_BS & (span[None] <= read_B[:, None])
        options: dict[str, Any] = {
            "attention_mask": mask_BS.to(torch.int64),
            "position_ids": (slots_T[None] - first_B1).clamp(min=0),
            self._cache_name: state,
            "use_cache": True,
            "return_dict": True,
            **({"logits_to_keep": 1} if read_B is None else {}),
        }
        outputs = self.inner(tokens_BT, **{n: v for n, v in options.items() if n in self._takes})
        logits = outputs.logits
        if read_B is None:
            logits = logits[:, -1]
        else:
            logits = logits[torch.arange(batch, device=device), read_B]
        return logits.to(wide(logits.dtype)), close_cache(state)
