"""What a family, or a network of the user's, gives the tasks: an objective and how it is used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxsr.interop.train.objective import Objective


@dataclass(frozen=True, kw_only=True)
class Networks:
    """What a run trains."""

    objective: "Objective"
    """With the network that the task exports; see `jaxsr.interop.train.objective`."""
    blocks: Sequence[str]
    """Names of the objective's submodules that `remat` recomputes."""
    title: str
    """Of the network, in the run's summary."""
    description: Mapping[str, Any]
    """What builds the network, for the metadata of exported weights."""
    loss: str
    """In words, for the summary."""
    labels: Mapping[str, tuple[float, float]] | None = None
    """Ranges of the labels that the losses take with each sample."""
    extra_inputs: Mapping[str, tuple] = field(default_factory=dict)
    """What the network's `forward` takes after the images, by phase. Default: nothing."""
