"""How an engine stores a network's weights on its devices."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.models.hugging_face.direct_weights import directly_read
from jaxsr.models.llama.host_weights import host_weights
from jaxsr.models.llama.network import CausalLM
from jaxsr.models.llama.packed import level_arrays
from jaxsr.models.llama.transposed import (
    arranged,
    in_panels,
    linear_weights,
    transpose,
    untie_head,
)


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """Which weights are stored otherwise than the network has them, by torch name."""

    turned: frozenset[str]
    """Transposed."""
    panels: frozenset[str] = frozenset()
    """Those among them that are in panels, see `jaxsr.models.llama.transposed`."""
    turned_back: frozenset[str]
    """Those among them that the network takes as it had them. A program turns them back, and XLA
    drops both turns."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """A weight of its own -> the weight whose values it has."""

    @classmethod
    def chosen(
        cls, network: Any, skeleton: Any, *, on_cpu: bool, rows: int, compiled: bool = False
    ) -> "StoredWeights":
        """The form that the devices read fastest.

        Args:
          network: with its weights.
          skeleton: of it, on the meta device; layers that take other weights replace its own.
          on_cpu: whether programs run on CPUs.
          rows: that decode together; 1 where weights may not be in panels.
          compiled: whether programs may call kernels that are compiled for panels.
        """
        levels = level_arrays(skeleton)
        if not on_cpu:
            return cls(turned=levels, turned_back=levels)
        if isinstance(network, CausalLM):
            turned, panels = transpose(skeleton, rows=rows, compiled=compiled)
            return cls(turned=turned | levels, panels=panels, turned_back=levels)
        copied = untie_head(skeleton)
        linear, panels = linear_weights(skeleton), frozenset[str]()
        if compiled:
            direct = directly_read(_in_bfloat16(skeleton))
            panels = in_panels(skeleton, linear - {f"{name}.weight" for name in direct})
        return cls(
            turned=levels | linear,
            panels=panels,
            turned_back=levels | linear - panels,
            copied=copied,
        )

    def of(self, network: Any) -> dict[str, np.ndarray]:
        """The weights of a network as they are stored."""
        host = host_weights(network)
        host |= {name: host[source] for name, source in self.copied.items()}
        return {name: self._arranged(name, array) for name, array in host.items()}

    def shapes_of(self, network: Any) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of `of`; the network may lie on the meta device."""
        named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        named |= {name: named[source] for name, source in self.copied.items()}
        shapes = {}
        for name, tensor in named.items():
            one = np.zeros((), jnp.dtype(str(tensor.dtype).removeprefix("torch.")))
            array = self._arranged(name, np.broadcast_to(one, tensor.shape))
            shapes[name] = jax.ShapeDtypeStruct(array.shape, array.dtype)
        return shapes

    def _arranged(self, name: str, array: np.ndarray) -> np.ndarray:
        return arranged(array, panels=name in self.panels) if name in self.turned else array

    def for_network(self, weights: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Stored weights as the network takes them."""
        return {n: w.T if n in self.turned_back else w for n, w in weights.items()}


def _in_bfloat16(network: Any) -> Any:
    """A copy of a network on the meta device; grouped products take nothing else there."""
    tensors = (*network.parameters(), *network.buffers())
    floats = {id(t): t.detach().bfloat16() for t in tensors if t.is_floating_point()}
    return copy.deepcopy(network, floats | {id(t): t for t in tensors if id(t) not in floats})
