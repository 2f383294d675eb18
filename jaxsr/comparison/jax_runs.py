"""The module in JAX: compiled programs for forward and gradient, for a batch, a mesh, a key."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torch import nn

from jaxsr.comparison.arguments import Arguments, named_leaves
from jaxsr.comparison.torch_runs import RunResult
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.folding.policy import LaneFolding
from jaxsr.interop.mesh import batch_sharding, make_mesh, replicated
from jaxsr.interop.module import JaxModule, to_jax

Named = dict[str, Any]
State = tuple[Named, Named]
"""Parameters and buffers by name."""


class Program:
    """A compiled function, with the seconds that it took.

    Args:
      function: pure; of pytrees of arrays.
      arguments: to trace it with.
    """

    def __init__(self, function: Callable, arguments: tuple) -> None:
        began = time.perf_counter()
        lowered = jax.jit(function).lower(*arguments)
        traced = time.perf_counter()
        self._compiled = lowered.compile()
        self.trace_s = traced - began
        self.compile_s = time.perf_counter() - traced
        self._arguments = arguments

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Runs it, on the arguments it was traced with by default; waits for the result."""
        return jax.block_until_ready(self._compiled(*(arguments or self._arguments)))


class JaxRuns:
    """A converted module and its compiled functions.

    Args:
      module: unchanged; converted already, or to be converted.
      arguments: of its forward.
      lane_folding: as for `to_jax`.

    Raises:
      UnsupportedTorchError: it cannot be converted.
    """

    def __init__(
        self,
        module: nn.Module | JaxModule,
        arguments: Arguments,
        *,
        lane_folding: LaneFolding | None = None,
    ) -> None:
        is_converted = isinstance(module, JaxModule)
        self.converted = module if is_converted else to_jax(module, lane_folding=lane_folding)
        self.arguments = arguments
        self.state = (self.converted.params, self.converted.buffers)
        self.key = jax.random.key(0)

    def forward(self, *, train: bool) -> Callable[..., tuple[Named, Named]]:
        """A pure function of (params, buffers), inputs and key: outputs by name, and buffers."""

        def run(state: State, inputs: Named, key: jax.Array | None) -> tuple[Named, Named]:
            args, kwargs = self.arguments.call(inputs)
            outputs, buffers = self.converted.call(*state, args, kwargs, rng=key, train=train)
            return named_leaves(outputs, (jax.Array, np.ndarray)), buffers

        return run

    def gradient(self, *, train: bool) -> Callable[..., tuple[Named, Named, Named]]:
        """The same with a further argument, the outputs' cotangents; also gives gradients."""
        forward = self.forward(train=train)

        def loss(
            params: Named,
            floats: Named,
            buffers: Named,
            rest: Named,
            key: jax.Array,
            cotangents: Named,
        ) -> tuple[jax.Array, tuple[Named, Named]]:
            outputs, after = forward((params, buffers), floats | rest, key)
            products = [(outputs[n] * c).real.sum() for n, c in cotangents.items() if n in outputs]
            return jnp.asarray(sum(products), jnp.float32), (outputs, after)

        def run(
            state: State, inputs: Named, key: jax.Array, cotangents: Named
        ) -> tuple[Named, Named, Named]:
            floats = {n: v for n, v in inputs.items() if jnp.issubdtype(v.dtype, jnp.inexact)}
            rest = {n: v for n, v in inputs.items() if n not in floats}
            params, buffers = state
            (by_param, by_input), aux = jax.grad(loss, argnums=(0, 1), has_aux=True)(
                params, floats, buffers, rest, key, cotangents
            )
            gradients = by_param | {f"∂ {n}": g for n, g in by_input.items()}
            # torch's gradient of a real loss is the conjugate of JAX's.
            return *aux, {n: g.conj() for n, g in gradients.items()}

        return run

    def inputs(self, arguments: Arguments | None = None) -> Named:
        """The arguments' tensors as JAX arrays."""
        return {n: jnp.asarray(a) for n, a in (arguments or self.arguments).arrays.items()}

    def by_rows(self) -> Callable[[State, Named, jax.Array | None], Named]:
        """A function as `forward` in evaluation, vectorised over samples by `jax.vmap`: outputs."""
        forward = self.forward(train=False)

        def run(state: State, inputs: Named, key: jax.Array | None) -> Named:
            def one(row: Named) -> Named:
                return forward(
                    state, {n: v[None] if n in mapped else v for n, v in row.items()}, key
                )[0]

            mapped = {n for n, v in inputs.items() if v.ndim}
            return jax.vmap(one, in_axes=({n: 0 if n in mapped else None for n in inputs},))(inputs)

        return run

    def per_row(self, rows: Arguments) -> Program:
        """Forward of each sample alone."""
        return Program(self.by_rows(), (self.state, self.inputs(rows), self.key))

    def on_mesh(self, batch: Arguments, devices: int) -> Program:
        """Forward with the batch split over several devices."""
        mesh = make_mesh(devices)
        rows, same = batch_sharding(mesh), replicated(mesh)
        inputs = self.inputs(batch)
        placed = {n: jax.device_put(v, rows if v.ndim else same) for n, v in inputs.items()}
        state = jax.device_put(self.state, same)
        return Program(self.forward(train=False), (state, placed, jax.device_put(self.key, same)))


def to_host(tree: PyTree) -> PyTree:
    """The tree with NumPy arrays."""
    return jax.tree.map(np.asarray, tree)


def as_run(outputs: Named, buffers: Named, gradients: Named | None = None) -> RunResult:
    """A program's results, on the host."""
    return RunResult(
        outputs=to_host(outputs), buffers=to_host(buffers), gradients=to_host(gradients or {})
    )
