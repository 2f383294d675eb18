"""A torch language model as a JAX function of weights that lie as its devices read them fastest."""

import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxsr.generation.packed_layers import Packed, lower_packed_product, use_kernels
from jaxsr.generation.stored_weights import StoredWeights
from jaxsr.interop.cpu_kernels import packed_product
from jaxsr.models.llama.host_weights import without_values
from jaxsr.models.llama.int8_matmul import multiply_integers
from jaxsr.models.llama.network import take_fewer_kernels
from jaxsr.models.llama.packed import arranged_copy, has_blocks
from jaxsr.runtime.xla_flags import product_fusion

if TYPE_CHECKING:
    from jaxsr.interop import JaxModule


def with_arranged_blocks(network: Any, *, mesh: Mesh, packed: Packed) -> Any:
    """The network itself, or a copy whose weights in blocks lie as its devices take them.

    Args:
      network: the torch module with its weights.
      mesh: where programs run.
      packed: see `jaxsr.generation.jax_decoder.JaxEngine`.
    """
    if not has_blocks(network):
        return network
    network = arranged_copy(network)
    on_one_cpu = mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"
    if packed != "off" and on_one_cpu and packed_product.available():
        use_kernels(network, exact=packed == "exact")
    return network


class TracedNetwork:
    """The network that an engine runs, with the layers that its devices compute fastest.

    It holds no weights.

    Args:
      network: the torch module with its weights, of `with_arranged_blocks`.
      mesh: where programs run.
      rows: see `jaxsr.generation.jax_decoder.JaxEngine`.
    """

    def __init__(self, network: Any, *, mesh: Mesh, rows: int) -> None:
        platform = mesh.devices.flat[0].platform
        on_cpu = platform == "cpu"
        self.skeleton = without_values(network)
        """What is traced, on the meta device."""
        multiply_integers(self.skeleton, weight_only=on_cpu)
        if platform == "gpu":
            take_fewer_kernels(self.skeleton, join=mesh.size == 1)
        few = mesh.size == 1 and bool(product_fusion())
        self.stored = StoredWeights.chosen(
            network, self.skeleton, on_cpu=on_cpu, rows=rows if few else 1
        )
        """How its weights lie on the devices."""

    @cached_property
    def _model(self) -> "JaxModule":
        # Only a trace needs it, and importing what it takes is a good part of a short run.
        from jaxsr.interop import lowering, to_jax

        lowering("aten::_int_mm")(integer_product)
        lowering("jaxsr::packed_product")(lower_packed_product)
        return to_jax(self.skeleton)

    def run(self, weights: Mapping[str, jax.Array], *args: Any, **kwargs: Any) -> Any:
        """What the network's `forward` returns.

        Args:
          weights: as they are stored.
          *args, **kwargs: of `forward`.
        """
        weights = self.stored.for_network(weights)
        params = {name: weights[name] for name in self._model.params}
        buffers = {name: weights[name] for name in self._model.buffers}
        with warnings.catch_warnings():
            # Of libraries' code that counts in int64, which JAX has as int32.
            warnings.filterwarnings("ignore", "Explicitly requested dtype")
            return self._model.apply(params, buffers, *args, **kwargs)[0]


def integer_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The sums of `a @ b`, int8, as int32."""
    # `b` is a transposed weight. Turned back, XLA drops both turns and multiplies the weight as it
    # is stored; given as it comes, its CPU multiplies element by element, 25 times slower.
    contract = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(a, b.T, contract, preferred_element_type=jnp.int32)
