"""A network whose next tokens are proposed, by prompt lookup or by a smaller network, the draft.

Both networks' weights lie on the same devices, and one compiled loop runs both: the draft proposes
greedily, one forward of the network says how many proposals are right. Method: Leviathan, Kalman
and Matias 2023, arXiv:2211.17192, with greedy tokens alone; `assistant_model` of transformers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxsr.errors import InputError
from jaxsr.generation.cache_layouts import CacheLayout
from jaxsr.generation.jax_network import JaxNetwork
from jaxsr.generation.jax_steps import Draft, Steps
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.packed_layers import Packed
from jaxsr.generation.stored_programs import structure


class ProposingNetwork(JaxNetwork):
    """`JaxNetwork` with a draft, if there is one.

    Args:
      network, mesh, programs, packed, keeps_values: as for `JaxNetwork`.
      draft: the smaller network, of the same tokenizer; None where there is none.
    """

    draft_kind: type[JaxNetwork] = JaxNetwork
    """The class that holds the draft."""

    def __init__(
        self,
        network: Any,
        *,
        mesh: Mesh,
        programs: Path | None,
        packed: Packed,
        keeps_values: bool = True,
        draft: Any = None,
    ) -> None:
        shared: dict[str, Any] = {"mesh": mesh, "packed": packed, "keeps_values": keeps_values}
        super().__init__(network, programs=programs, **shared)
        self.draft = None
        if draft is not None:
            self.draft = self.draft_kind(draft, programs=None, **shared)

    def check_proposals(self, options: SamplingOptions, *, longest: int = 0) -> None:
        """See `BatchDecoder.check_proposals`."""
        if options.proposals is not None:
            self.layout_for(options)
        if options.num_draft_tokens is None:
            return
        if self.draft is None:
            raise InputError(
                f"{options.named_proposals} needs a draft model; give one, or leave it out"
            )
        self.draft._layout.looking_ahead(options.num_draft_tokens)
        context, need = self.draft.config.max_position_embeddings, longest + options.max_new_tokens
        if need > context:
            raise InputError(
                f"a prompt and its output take {need} tokens, but the draft model's context holds "
                f"{context}; use a smaller --max-new-tokens, or leave --draft-model out"
            )

    def layout_for(self, options: SamplingOptions) -> CacheLayout:
        """How batches with these options keep the network's past."""
        if options.proposals is None:
            return self._layout
        return self._layout.looking_ahead(options.proposals)

    def steps_for(self, options: SamplingOptions) -> Steps:
        """The steps of batches with these options."""
        layout = self.layout_for(options)
        if options.num_draft_tokens is None:
            return Steps(layout, self._run)
        assert self.draft is not None
        draft = Draft(
            layout=self.draft._layout.looking_ahead(options.num_draft_tokens),
            run=_run_of(self.draft, "draft"),
            vocab_size=min(self.config.vocab_size, self.draft.config.vocab_size),
        )
        return Steps(layout, _run_of(self, "network"), draft)

    def weights_for(self, options: SamplingOptions) -> dict[str, Any]:
        """The weights that these steps take."""
        if options.num_draft_tokens is None:
            return self._weights
        assert self.draft is not None
        return {"network": self._weights, "draft": self.draft._weights}

    def ahead(self, options: SamplingOptions) -> tuple[int, bool]:
        """The dependencies of a program on its layout and the draft."""
        return self.layout_for(options).ahead, options.num_draft_tokens is not None

    def _traced(
        self, key: tuple[Any, ...], function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Callable[..., Any]:
        if self.draft is not None:
            key = (*key, structure(self.draft._skeleton))
        return super()._traced(key, function, args)


def _run_of(network: JaxNetwork, part: str) -> Callable[..., Any]:
    """Its output from a table of both networks' weights."""
    return lambda weights, *args, **kwargs: network._run(weights[part], *args, **kwargs)
