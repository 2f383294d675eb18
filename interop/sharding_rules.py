"""Which axis of a weight is split over the mesh's `tensor` axis: rules by pattern of its name.

A rule is in the words of transformers' plans (`base_model_tp_plan` of its configurations):
`colwise` splits a layer by its outputs, `rowwise` by its inputs, so that a pair of them needs one
all-reduce (Shoeybi et al. 2019, arXiv:1909.08053). XLA inserts the communication; a layer without
a rule is computed whole on every device of the axis. Results do not depend on the rules.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

from jaxsr.interop.errors import InputError

if TYPE_CHECKING:
    from torch import nn

Rules = Mapping[str, str]
"""Pattern of a module's or parameter's name -> `colwise`, `rowwise` or `replicate`."""

STYLES = ("colwise", "rowwise", "replicate")


def tensor_axis(name: str, ndim: int, rules: Rules) -> int | None:
    """The axis of a parameter that is split; None where it is whole.

    Args:
      name: of the parameter.
      ndim: of its array: torch's (outputs, inputs, …), or (experts, outputs, inputs).
      rules: the first pattern that matches the name, or the front of it, decides.
    """
    for pattern, style in rules.items():
        if _matches(name, pattern):
            experts = 1 if ndim == 3 else 0
            if style == "colwise" and ndim:
                return experts
            if style == "rowwise" and ndim > 1:
                return experts + 1
            return None
    return None


def check_rules(rules: Rules, names: Collection[str]) -> None:
    """Refuses rules without effect.

    Raises:
      InputError: a style is unknown, or a pattern matches no parameter.
    """
    for pattern, style in rules.items():
        if style not in STYLES:
            raise InputError(
                f"the sharding rule {pattern!r} is {style!r}, not one of {', '.join(STYLES)}"
            )
        if not any(_matches(name, pattern) for name in names):
            listed = ", ".join([*names][:4])
            raise InputError(
                f"the sharding rule {pattern!r} matches no parameter; there are {listed}, …"
            )


def planned_rules(network: "nn.Module") -> dict[str, str]:
    """The rules that transformers provides for a network; empty for other networks.

    Entries of a plan in other words, for experts for example, or for layers that this network lacks
    or ties to others, are left out.
    """
    plan: Any = getattr(network, "tp_plan", None)
    if not isinstance(plan, Mapping):
        return {}
    rules: dict[str, str] = {}
    for pattern, style in cast(Mapping[str, str], plan).items():
        # An embedding is split by its vocabulary, the axis of a layer's outputs.
        word = "colwise" if style == "embedding_rowwise" else style
        for known in ("colwise", "rowwise"):
            if known in word:
                rules[pattern] = known
    # Quantised weights are buffers.
    names = [name for name, _ in (*network.named_parameters(), *network.named_buffers())]
    return {p: style for p, style in rules.items() if any(_matches(n, p) for n in names)}


def _matches(name: str, pattern: str) -> bool:
    """Whether this is the parameter, or one of the module."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
