"""A network of ours as a JAX function that traces each kind of block once.

Thirty equal blocks take thirty times as long to trace as one, seconds at each start without stored
programs. Here a block is a function under `jax.jit`, which JAX traces once for equal shapes; XLA
puts the calls back in line, so that its programs are those of the whole network.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from torch import nn

from jaxsr.generation.stored_programs import structure
from jaxsr.generation.stored_weights import named_tensors
from jaxsr.interop import JaxModule, to_jax
from jaxsr.models.llama.network import CausalLM

_LAYERS = "model.layers"

Weights = Mapping[str, jax.Array]


class RepeatedBlocks:
    """`CausalLM.forward` in JAX.

    Args:
      network: on the meta device.
    """

    def __init__(self, network: CausalLM) -> None:
        ends = copy.deepcopy(network)
        ends.model.layers = nn.ModuleList()
        self._ends = to_jax(ends)
        kinds: dict[str, Callable[..., Any]] = {}
        self._blocks: list[Callable[..., Any]] = []
        for layer in network.model.layers:
            tensors = [(n, t.shape, t.dtype) for n, t in named_tensors(layer).items()]
            kind = repr((structure(layer), tensors))
            if kind not in kinds:
                kinds[kind] = jax.jit(_function(to_jax(layer)))
            self._blocks.append(kinds[kind])

    def __call__(
        self,
        weights: Weights,
        tokens_BT: jax.Array,
        cache: Sequence[Any] | None = None,
        *,
        read_B: jax.Array | None = None,
        **places: Any,
    ) -> tuple[jax.Array, list[Any]]:
        """As `CausalLM.forward`, of the weights by name."""
        positions, x_BTE = _call(self._ends, weights, tokens_BT, cache, method="begin", **places)
        new = []
        for index, block in enumerate(self._blocks):
            prefix = f"{_LAYERS}.{index}."
            tensors = {
                n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)
            }
            x_BTE, k, v = block(tensors, x_BTE, positions, None if cache is None else cache[index])
            new.append((k, v))
        return _call(self._ends, weights, x_BTE, read_B, method="end"), new


def as_it_stands(network: nn.Module) -> Callable[..., Any]:
    """`network.forward` in JAX, of the weights by name: any network, traced as it stands."""
    return _function(to_jax(network))


def _function(module: JaxModule) -> Callable[..., Any]:
    return lambda weights, *args, **kwargs: _call(module, weights, *args, **kwargs)


def _call(module: JaxModule, weights: Weights, *args: Any, **kwargs: Any) -> Any:
    params = {name: weights[name] for name in module.params}
    buffers = {name: weights[name] for name in module.buffers}
    return module.apply(params, buffers, *args, **kwargs)[0]
