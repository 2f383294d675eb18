"""How an engine stores a network's weights on its devices.

It takes a network's tensors by name, and the network without their values, so that it can place
the weights one at a time.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from torch import Tensor, nn

from jaxsr.interop.host_arrays import to_numpy
from jaxsr.models.hugging_face.direct_weights import directly_read
from jaxsr.models.llama.network import CausalLM
from jaxsr.models.llama.packed import level_arrays
from jaxsr.models.llama.transposed import (
    arranged,
    in_panels,
    linear_weights,
    transpose,
    turned_to_panels,
    untie_head,
)

Network = TypeVar("Network", bound=nn.Module)


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by its torch name, tied ones once."""
    return dict(network.named_parameters()) | dict(network.named_buffers())


def without_values(network: Network) -> Network:
    """The same network on the meta device; `network` itself is not changed."""
    tensors = (*network.parameters(), *network.buffers())
    return copy.deepcopy(network, {id(tensor): tensor.to("meta") for tensor in tensors})


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
        cls, network: Any, skeleton: Any, *, on_cpu: bool, compiled: bool = False
    ) -> "StoredWeights":
        """The form that the devices read fastest.

        Args:
          network: with its weights.
          skeleton: of it, on the meta device; layers that take other weights replace its own.
          on_cpu: whether programs run on CPUs.
          compiled: whether programs may call kernels that are compiled for panels.
        """
        levels = level_arrays(skeleton)
        if not on_cpu:
            return cls(turned=levels, turned_back=levels)
        if isinstance(network, CausalLM):
            turned, panels = transpose(skeleton, compiled=compiled)
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

    def of(self, network: Any, *, keeps_values: bool) -> Iterator[tuple[str, np.ndarray]]:
        """The weights of a network as they are stored, one at a time by name.

        Args:
          network: with its weights.
          keeps_values: whether it keeps them. Otherwise each is freed after its turn.
        """
        tensors = named_tensors(network)
        others = {name: name for name in tensors if name not in self.copied}
        sources = {**self.copied, **others}  # copies first, while their sources are there
        for name, source in sources.items():
            tensor, is_last = tensors[source].detach(), name == source and not keeps_values
            # JAX takes aligned memory as it is, and the system's new pages take long.
            if is_last and name in self.panels and tensor.data_ptr() % _ALIGNED == 0:
                yield name, to_numpy(turned_to_panels(tensor))
            else:
                yield name, to_numpy(self._arranged(name, tensor).contiguous())
            if is_last:
                tensors[source].data = tensor.new_zeros(()).expand(tensor.shape)

    def shapes_of(self, network: Any) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of `of`; the network may lie on the meta device."""
        tensors = {name: tensor.to("meta") for name, tensor in named_tensors(network).items()}
        tensors |= {name: tensors[source] for name, source in self.copied.items()}
        shapes = {}
        for name, tensor in tensors.items():
            dtype = jnp.dtype(str(tensor.dtype).removeprefix("torch."))
            shapes[name] = jax.ShapeDtypeStruct(self._arranged(name, tensor).shape, dtype)
        return shapes

    def _arranged(self, name: str, tensor: Tensor) -> Tensor:
        return arranged(tensor, panels=name in self.panels) if name in self.turned else tensor

    def for_network(self, weights: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Stored weights as the network takes them."""
        return {n: w.T if n in self.turned_back else w for n, w in weights.items()}


_ALIGNED = 64
"""Bytes."""


def _in_bfloat16(network: Any) -> Any:
    """A copy of a network on the meta device; grouped products take nothing else there."""
    tensors = (*network.parameters(), *network.buffers())
    floats = {id(t): t.detach().bfloat16() for t in tensors if t.is_floating_point()}
    return copy.deepcopy(network, floats | {id(t): t for t in tensors if id(t) not in floats})
