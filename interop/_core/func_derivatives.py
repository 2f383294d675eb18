"""`torch.func.grad`, `vjp`, `jvp` and functions built on them, by JAX's transformations.

Torch's `jacrev`, `jacfwd` and `hessian` call these and `torch.vmap`, so they need no code here.
"""

from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from jaxsr.interop._core.array_trees import Arrays, Wrap, flat_arrays
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import Region
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import UnsupportedTorchError

Argnums = int | tuple[int, ...] | None


class _Function:
    """A torch function as one of the arrays of the arguments by which it is differentiated."""

    def __init__(
        self,
        trace: Trace,
        function: Callable,
        args: tuple,
        kwargs: dict | None = None,
        *,
        argnums: Argnums,
        has_aux: bool,
    ) -> None:
        self._trace, self._function, self._has_aux = trace, function, has_aux
        self._args, self._kwargs = args, kwargs or {}
        numbers = range(len(args)) if argnums is None else argnums
        self._numbers = [numbers] if isinstance(numbers, int) else list(numbers)
        selected = tuple(args[i] for i in self._numbers)
        self.arrays, self._selected = flat_arrays(trace, selected)
        self._is_single = isinstance(argnums, int)
        self.output: Wrap
        self.aux: Wrap

    def __call__(self, *arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        """The output's arrays, and those of the auxiliary output (`has_aux`)."""
        with Region(writable=False).entered(), torch.enable_grad():
            args = list(self._args)
            for number, part in zip(self._numbers, self._selected(arrays), strict=True):
                args[number] = part
            result = self._function(*args, **self._kwargs)
            leaves = pytree.tree_leaves([args[number] for number in self._numbers])
            if any(isinstance(leaf, JaxTensor) and leaf.cell.version for leaf in leaves):
                raise UnsupportedTorchError(
                    "a function of torch.func writes into its argument; write into a clone"
                )
            output, aux = result if self._has_aux else (result, ())
            arrays_out, self.output = flat_arrays(self._trace, output)
            aux_out, self.aux = flat_arrays(self._trace, aux)
            return arrays_out, aux_out

    def inputs(self, arrays: Arrays) -> PyTree:
        """Arrays like its arguments, in their form."""
        parts = self._selected(arrays)
        return parts[0] if self._is_single else parts


def vjp(
    trace: Trace, func: Callable, *primals: PyTree, argnums: Argnums = None, has_aux: bool = False
) -> tuple[Any, ...]:
    """`torch.func.vjp(func, *primals)`, by some of the arguments."""
    function = _Function(trace, func, primals, argnums=argnums, has_aux=has_aux)
    arrays, pullback, aux = jax.vjp(function, *function.arrays, has_aux=True)

    def gradients(
        cotangents: PyTree, retain_graph: bool = True, create_graph: Any = None
    ) -> PyTree:
        del retain_graph, create_graph
        return function.inputs(
            _conjugated(pullback(_conjugated(flat_arrays(trace, cotangents)[0])))
        )

    output = function.output(arrays)
    return (output, gradients, function.aux(aux)) if has_aux else (output, gradients)


def jvp(
    trace: Trace,
    func: Callable,
    primals: tuple,
    tangents: PyTree,
    argnums: Argnums = None,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """`torch.func.jvp(func, primals, tangents)`, by some of the arguments."""
    del strict
    function = _Function(trace, func, primals, argnums=argnums, has_aux=has_aux)
    directions = flat_arrays(trace, tangents)[0]
    arrays, slopes, aux = jax.jvp(function, function.arrays, directions, has_aux=True)
    results = function.output(arrays), function.output(slopes)
    return (*results, function.aux(aux)) if has_aux else results


def grad_and_value(
    trace: Trace, func: Callable, argnums: Argnums, has_aux: bool, args: tuple, kwargs: dict
) -> tuple[PyTree, Any]:
    """`torch.func.grad_and_value(func, argnums, has_aux)(*args, **kwargs)`."""
    function = _Function(trace, func, args, kwargs, argnums=argnums, has_aux=has_aux)
    arrays, pullback, aux = jax.vjp(function, *function.arrays, has_aux=True)
    output = function.output(arrays)
    if not isinstance(output, torch.Tensor) or output.dim():
        form = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise RuntimeError(
            f"torch.func.grad needs a function that returns a scalar tensor, got {form}; return "
            "its sum or mean, or use torch.func.vjp or jacrev"
        )
    (one,) = flat_arrays(trace, torch.ones_like(output))[0]
    gradients = function.inputs(_conjugated(pullback([one])))
    return gradients, ((output, function.aux(aux)) if has_aux else output)


def _conjugated(arrays: Arrays) -> list[jax.Array]:
    """torch's gradient of a complex number is the conjugate of JAX's."""
    return [a.conj() if a.dtype.kind == "c" else a for a in arrays]


def functional_inputs(
    trace: Trace, inputs: tuple[torch.Tensor, ...], create_graph: bool, need_graph: bool
) -> tuple[torch.Tensor, ...]:
    """The tensors by which `torch.autograd.functional` differentiates, instead of its inputs.

    With `create_graph` torch detaches those that are not marked with `requires_grad`. An input of
    `apply` need not be marked, and JAX may take its gradient all the same.
    """
    del trace
    variables = [x.view_as(x) if create_graph else x.detach() for x in inputs]
    return tuple(x if x.requires_grad else x.requires_grad_(need_graph) for x in variables)
