"""A torch module inside a Flax NNX project.

    net = TorchModule(torch_module, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)

Parameters are `nnx.Param` and buffers `TorchBuffer` variables under torch's names, so `nnx.jit`,
`nnx.grad`, `nnx.split` and optax treat the module like any other of the project.
"""

from typing import Any

import jax
from flax import nnx
from torch import nn

from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import InputError
from jaxsr.interop.module import JaxModule, to_jax


class TorchBuffer(nnx.BatchStat[Any]):
    """A torch buffer or frozen parameter: state that no optimiser moves."""


class TorchModule(nnx.Module):
    """Wraps a torch module, or one that `to_jax` has converted.

    Args:
      module: the torch module, or its `JaxModule` where options such as `remat` were given.
      rngs: key source for modules that draw random numbers; its stream `dropout` is used.
      **options: passed to `to_jax`.
    """

    def __init__(
        self, module: nn.Module | JaxModule, *, rngs: nnx.Rngs | None = None, **options: Any
    ) -> None:
        if isinstance(module, JaxModule):
            if options:
                raise InputError(f"a JaxModule has its options already, got {sorted(options)}")
            converted = module
        else:
            converted = to_jax(module, **options)
        self.converted = nnx.static(converted)
        self.params = nnx.data({n: nnx.Param(a) for n, a in converted.params.items()})
        self.buffers = nnx.data({n: TorchBuffer(a) for n, a in converted.buffers.items()})
        self.rngs = nnx.data(rngs)
        # The name that `train()` and `eval()` of an enclosing nnx.Module set.
        self.deterministic = False

    def __call__(self, *inputs: PyTree, method: str = "forward", **kwargs: PyTree) -> PyTree:
        """Runs the module and keeps its new buffers.

        `train()` and `eval()`, of this module or of one around it, set torch's training mode.
        """
        converted: JaxModule = self.converted
        train = not self.deterministic
        key: jax.Array | None = None
        if self.rngs is not None and train:
            key = self.rngs.dropout()
        params = {n: v[...] for n, v in self.params.items()}
        buffers = {n: v[...] for n, v in self.buffers.items()}
        outputs, after = converted.call(
            params, buffers, inputs, kwargs, rng=key, train=train, method=method
        )
        for name, value in after.items():
            if value is not buffers[name]:
                self.buffers[name][...] = value
        return outputs
