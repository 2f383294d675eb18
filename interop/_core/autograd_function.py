"""Parts of a trace that run inside another JAX transformation.

`torch.utils.checkpoint` becomes `jax.checkpoint`; a `torch.autograd.Function` becomes a
`jax.custom_vjp` with the same backward. In-place writes made inside, such as BatchNorm statistics,
leave it as additional results.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils.checkpoint
from jax.custom_derivatives import SymbolicZero
from torch.autograd.function import Function
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from jaxsr.interop._core import control_flow, func_derivatives
from jaxsr.interop._core.attributes import describe_change
from jaxsr.interop._core.deferred import ChannelArray
from jaxsr.interop._core.differentiated import is_differentiated
from jaxsr.interop._core.dtypes import as_carried, as_int64, cast, is_differentiable, to_jax_dtype
from jaxsr.interop._core.entry_points import ANY_FLEX_ATTENTION, entry_point, replaced, traced_apply
from jaxsr.interop._core.host_draws import refusing_seeds
from jaxsr.interop._core.index_bounds import check_values, place_in_code
from jaxsr.interop._core.other_modes import check_mode, check_recomputation
from jaxsr.interop._core.tensor import Cell, JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import Region, plain_torch
from jaxsr.interop._core.vmap import vmapped
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.cpu_kernels.operands import varying_axes
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.python_state import Snapshot, kept_change


def _root(array: Any, like: JaxTensor) -> JaxTensor:
    """A tensor that shares no memory, with the shape and strides of `like`."""
    with plain_torch():
        meta = torch.empty_strided(
            like.meta.size(), like.meta.stride(), dtype=like.dtype, device="meta"
        )
    cell = Cell(array, None)
    cell.constants = like.cell.constants  # XLA merges across the bounds of a region
    return JaxTensor(meta, cell, None, like.needs_grad)


def _with_arrays(values: Sequence, places: list[int], arrays: Sequence) -> list:
    """The values, with new tensors around arrays at some places."""
    result = list(values)
    for i, array in zip(places, arrays, strict=True):
        result[i] = _root(array, values[i])
    return result


def _refilled(values: Sequence, arrays: Sequence) -> list:
    """The values, with a new tensor around the next array for each tensor among them."""
    places = [i for i, value in enumerate(values) if isinstance(value, JaxTensor)]
    return _with_arrays(values, places, arrays)


def checkpointed(fn: Callable) -> Callable:
    """`fn` with its activations recomputed in the backward pass."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = pytree.tree_flatten((args, kwargs))
        # Constants need no recomputation, and stay readable in Python.
        places = [i for i, v in enumerate(leaves) if isinstance(v, JaxTensor) and v.const is None]
        region = Region(writable=True)
        returned: dict[str, Any] = {}

        def pure(arrays: list[jax.Array]) -> tuple[list[jax.Array | ChannelArray], list[jax.Array]]:
            with region.entered():
                inner = _with_arrays(leaves, places, arrays)
                arguments = {inner[i].cell: i for i in places}
                a, k = pytree.tree_unflatten(inner, tree)
                flat, returned["tree"] = pytree.tree_flatten(fn(*a, **k))
                returned["leaves"] = flat
                returned["arguments"] = [
                    arguments.get(t.cell) if isinstance(t, JaxTensor) else None for t in flat
                ]
                if any(cell.version for cell in arguments):
                    raise UnsupportedTorchError(
                        "a checkpointed function writes into its argument; write into a clone"
                    )
                results = [t.content() for t in flat if isinstance(t, JaxTensor)]
                written = [cell.read() for cell in region.written]
                returned["bounds"] = [cell.bounds for cell in region.written]
            region.roll_back()
            return results, written

        results, written = jax.checkpoint(pure)([leaves[i].content() for i in places])
        changes = zip(list(region.written), written, returned["bounds"], strict=True)
        for cell, value, bounds in changes:
            cell.write(value)
            cell.bounds = bounds
        flat = _refilled(returned["leaves"], results)
        # An argument handed back is the same tensor outside as well.
        for j, i in enumerate(returned["arguments"]):
            if i is not None and flat[j].shape == leaves[i].shape:
                flat[j] = leaves[i]
        return pytree.tree_unflatten(flat, returned["tree"])

    return wrapped


# ---- torch.autograd.Function


class _Context:
    """The `ctx` of `forward` and `backward` of a torch.autograd.Function."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: tuple = ()
        self.undifferentiable: set[int] = set()
        self.materialize = True

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    @property
    def saved_variables(self) -> tuple:
        """torch's older name of `saved_tensors`."""
        return self.saved_tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        self.undifferentiable.update(id(t) for t in tensors)

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize = value

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        raise UnsupportedTorchError(
            "torch.autograd.Function with ctx.mark_dirty writes in place; return a new tensor"
        )


def apply_function(trace: Trace, cls: type[Function], args: tuple, kwargs: dict) -> Any:
    """`cls.apply(*args)` with `cls.backward` as its derivative."""
    trace.has_functions = True
    has_setup = cls.setup_context is not Function.setup_context
    if has_setup:  # as torch does
        bound = inspect.signature(cls.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    if kwargs:
        raise UnsupportedTorchError(
            f"{cls.__name__}.apply takes keyword arguments here; pass them by position"
        )
    args = tuple(
        trace.adopt(a) if isinstance(a, torch.Tensor) and not isinstance(a, JaxTensor) else a
        for a in args
    )
    places = [i for i, a in enumerate(args) if isinstance(a, JaxTensor)]
    needs = tuple(isinstance(a, JaxTensor) and is_differentiable(a.meta) for a in args)
    if cls.vjp is not Function.vjp or cls.backward is Function.backward:
        raise UnsupportedTorchError(f"{cls.__name__} has no backward method; define one")
    traced: dict[str, Any] = {}

    def forward(*arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        with Region(writable=False).entered(), torch.no_grad():
            inner = _with_arrays(args, places, arrays)
            ctx = _Context(needs)
            if has_setup:
                out = cls.forward(*inner)
                cls.setup_context(ctx, tuple(inner), out)
            else:
                out = cls.forward(ctx, *inner)
            if any(inner[i].cell.version for i in places):
                raise UnsupportedTorchError(
                    f"{cls.__name__}.forward writes into its argument; write into a clone"
                )
            traced["single"] = not isinstance(out, tuple)
            flat = list(out) if isinstance(out, tuple) else [out]
            traced["outputs"] = flat
            traced["undifferentiable"] = [id(t) in ctx.undifferentiable for t in flat]
            results = [t.array() for t in flat if isinstance(t, JaxTensor)]
            state = {k: v for k, v in vars(ctx).items() if k != "undifferentiable"}
            traced["state"], traced["tree"] = pytree.tree_flatten(state)
            kept = [t for t in traced["state"] if isinstance(t, JaxTensor)]
            known = [*(inner[i] for i in places), *(t for t in flat if isinstance(t, JaxTensor))]
            traced["kept"] = [
                next((i for i, t in enumerate(known) if _is_same(t, one)), None) for one in kept
            ]
            saved = [t.array() for t in kept]
        return results, saved

    @jax.custom_vjp
    def run(*arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        return forward(*arrays)

    # Both passes may be traced later, when apply has long returned.
    def run_forward(*primals: Any) -> tuple[tuple[list, list], list[jax.Array]]:
        traced["varying"] = [varying_axes(primal.value) for primal in primals]
        values = [primal.value for primal in primals]
        with trace.resumed():
            # Not `forward`: a second derivative is to use `backward` as well. Saved inputs and
            # outputs have a gradient; other saved tensors have no gradient, as in torch.
            results, saved = run(*values)
        known = [*values, *results]
        kept = zip(saved, traced["kept"], strict=True)
        return (results, saved), [one if i is None else known[i] for one, i in kept]

    # Where torch has the gradient of a complex number, JAX has its conjugate.
    def run_backward(residuals: list[jax.Array], every_cotangent: tuple[list, list]) -> tuple:
        cotangents, _ = every_cotangent
        if all(isinstance(cotangent, SymbolicZero) for cotangent in cotangents):
            return (None,) * len(places)  # no loss reads the outputs
        with trace.resumed() as running, trace.as_left(), Region(writable=False).entered():
            leaves = _refilled(traced["state"], residuals)
            ctx = _Context(needs)
            vars(ctx).update(pytree.tree_unflatten(leaves, traced["tree"]))
            remaining = iter(cotangents)
            outputs: list[JaxTensor | None] = []
            for tensor in traced["outputs"]:
                cotangent = next(remaining) if isinstance(tensor, JaxTensor) else None
                if isinstance(cotangent, SymbolicZero):  # of an output that nothing reads
                    cotangent = None
                    if ctx.materialize and is_differentiable(tensor.meta):
                        cotangent = jnp.zeros(tuple(tensor.shape), to_jax_dtype(tensor.dtype))
                if cotangent is None or cotangent.dtype == jax.dtypes.float0:
                    outputs.append(None)
                else:
                    outputs.append(_root(jnp.conj(cotangent), tensor))
            state = Snapshot(cls, cls.__name__)
            grads = cls.backward(ctx, *outputs)
            if change := kept_change(state):
                raise UnsupportedTorchError(describe_change(change, f"{cls.__name__}.backward"))
            grads = grads if isinstance(grads, tuple) else (grads,)
            if len(grads) < len(args):
                raise ValueError(
                    f"{cls.__name__}.backward returns {len(grads)} gradients for {len(args)} inputs"
                )
            result = []
            for i in places:
                dtype = to_jax_dtype(args[i].dtype)
                if not is_differentiable(args[i].meta):
                    result.append(np.zeros(tuple(args[i].shape), jax.dtypes.float0))
                elif grads[i] is None:
                    result.append(None)
                else:
                    grad = jnp.conj(cast(running.as_jax_tensor(grads[i]).array(), dtype))
                    grad = _summed_to(grad, tuple(args[i].shape), f"{cls.__name__}.backward", i)
                    result.append(_varying_as(traced["varying"][len(result)], grad))
            return tuple(result)

    run.defvjp(run_forward, run_backward, symbolic_zeros=True)
    results = iter(run(*(args[i].array() for i in places))[0])
    # By this name `repeated_calls` tells backwards apart.
    plain = [x for x in traced["state"] if isinstance(x, (bool, int, float, str))]
    run_backward.__name__ = f"run_backward with {plain}"
    differentiable = any(args[i].needs_grad for i in places) and torch.is_grad_enabled()
    out = []
    for tensor, constant in zip(traced["outputs"], traced["undifferentiable"], strict=True):
        if not isinstance(tensor, JaxTensor):
            out.append(tensor)
            continue
        value = next(results)
        if constant or not torch.is_grad_enabled():
            value = jax.lax.stop_gradient(value)
        root = _root(value, tensor)
        root.needs_grad = differentiable and not constant and is_differentiable(tensor.meta)
        out.append(root)
    return out[0] if traced["single"] else tuple(out)


def _is_same(one: JaxTensor, other: JaxTensor) -> bool:
    """Whether two tensors are one, or the same view of one."""
    return one is other or (one.cell is other.cell and one.view_of is other.view_of)


def _summed_to(gradient: jax.Array, shape: tuple[int, ...], source: str, place: int) -> jax.Array:
    """The gradient of an input that was broadcast: torch sums over the axes that this added."""
    padded = (1,) * (gradient.ndim - len(shape)) + shape
    axes = [a for a, (n, size) in enumerate(zip(gradient.shape, padded, strict=False)) if n != size]
    if len(padded) != gradient.ndim or any(padded[axis] != 1 for axis in axes):
        raise ValueError(
            f"{source} returns a gradient of shape {gradient.shape} for input {place} of shape "
            f"{shape}; return one of the input's shape"
        )
    return gradient.sum(axes).reshape(shape) if gradient.shape != shape else gradient


def _varying_as(axes: frozenset, gradient: jax.Array) -> jax.Array:
    """A gradient that varies over these axes of a `shard_map`, as the input does.

    A weight that all devices have whole has the sum of their gradients.
    """
    now = varying_axes(gradient)
    if more := tuple(now - axes):
        gradient = jax.lax.psum(gradient, more)
    if fewer := tuple(axes - now):
        gradient = jax.lax.pcast(gradient, fewer, to="varying")
    return gradient


def associative_scan(
    trace: Trace,
    combine_fn: Callable[[PyTree, PyTree], PyTree],
    xs: PyTree,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> PyTree:
    """torch's function of that name by JAX's; `combine_fn` sees elements without the axis `dim`."""
    del combine_mode
    leaves, tree = pytree.tree_flatten(xs)
    tensors = [trace.as_jax_tensor(x) for x in leaves]

    def combine(left: list[jax.Array], right: list[jax.Array]) -> list[jax.Array]:
        with Region(writable=False).entered():
            sides = [
                pytree.tree_unflatten(
                    [trace.wrap(a, t.dtype) for a, t in zip(side, tensors, strict=True)], tree
                )
                for side in (left, right)
            ]
            results = pytree.tree_leaves(combine_fn(*sides))
            return as_carried([trace.as_jax_tensor(r).array() for r in results], left)

    axis = dim % tensors[0].dim()
    combine_all = jax.vmap(combine, in_axes=axis, out_axes=axis)
    arrays = [t.array() for t in tensors]
    if any(t.dtype == torch.int64 for t in tensors):
        made = jax.eval_shape(combine_all, arrays, arrays)
        arrays = [
            as_int64(a) if m.dtype == jnp.int64 else a for a, m in zip(arrays, made, strict=True)
        ]
    arrays = jax.lax.associative_scan(
        combine_all,
        arrays,
        reverse=reverse,
        axis=axis,
    )
    needs_grad = any(t.needs_grad for t in tensors)
    with plain_torch():
        metas = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
    results = [trace.wrap_like(a, m, needs_grad) for a, m in zip(arrays, metas, strict=True)]
    return pytree.tree_unflatten(results, tree)


_CHECKPOINT_OPTIONS = [
    "use_reentrant",
    "preserve_rng_state",
    "determinism_check",
    "debug",
    "early_stop",
]


_TRANSFORMATIONS: Mapping[str, Callable] = {
    "vmap": vmapped,
    "grad_and_value": func_derivatives.grad_and_value,
    "vjp": func_derivatives.vjp,
    "jvp": func_derivatives.jvp,
    "inputs of functional": func_derivatives.functional_inputs,
    "associative_scan": associative_scan,
    "cond": control_flow.cond,
    "while_loop": control_flow.while_loop,
    "scan": control_flow.scan,
    "map": control_flow.mapped,
    "flex_attention": control_flow.flex_attention,
}
"""The functions for torch's own transformations, by their names in `ENTRY_POINTS`."""


@contextmanager
def _checked_entry(trace: Trace, kind: Any, check: Callable[[Any], None]) -> Generator[None]:
    """Calls `check` with each context manager of a kind that the traced code enters."""
    enter = kind.__enter__

    def checked(self: Any) -> Any:
        if trace.is_tracing_thread():
            check(self)
        return enter(self)

    kind.__enter__ = checked
    try:
        yield
    finally:
        kind.__enter__ = enter


def _check_hooks(hooks: torch.autograd.graph.saved_tensors_hooks) -> None:
    """Refuses them, but for moving tensors to another device."""
    if not isinstance(hooks, torch.autograd.graph.save_on_cpu):
        raise UnsupportedTorchError(
            "torch.autograd.graph.saved_tensors_hooks changes what the backward pass reads, "
            "which JAX keeps itself; leave it out, or write a torch.autograd.Function that "
            "saves what the hook made"
        )


def _is_cut(args: Sequence) -> bool:
    """Whether torch's reentrant checkpoint gives nothing inside a gradient: no argument has one."""
    tensors = [value for value in args if isinstance(value, JaxTensor)]
    if not torch.is_grad_enabled() or any(t.needs_grad or is_differentiated(t) for t in tensors):
        return False
    warnings.warn(
        "no argument of torch.utils.checkpoint requires a gradient, so none of the weights inside "
        "gets one, as in torch; pass use_reentrant=False",
        stacklevel=3,
    )
    return True


@contextmanager
def patched(trace: Trace) -> Generator[None]:
    """Redirects the torch entry points that its dispatchers do not show us.

    Other threads pass through to torch's own.
    """
    checkpoint = torch.utils.checkpoint.checkpoint
    plain = getattr(checkpoint, "__wrapped__", checkpoint)

    def traced_checkpoint(function: Callable, *args: Any, **kwargs: Any) -> Any:
        if not trace.is_tracing_thread():
            return plain(function, *args, **kwargs)
        if kwargs.pop("context_fn", None) is not None:
            raise UnsupportedTorchError(
                "torch.utils.checkpoint with context_fn (selective recomputation); drop it, or use "
                "to_jax(remat=...)"
            )
        check_recomputation()
        is_cut = kwargs.get("use_reentrant") is not False and _is_cut(args)
        kwargs = {k: v for k, v in kwargs.items() if k not in _CHECKPOINT_OPTIONS}
        results = checkpointed(function)(*args, **kwargs)
        return pytree.tree_map_only(JaxTensor, torch.Tensor.detach, results) if is_cut else results

    def redirected(name: str, ours: Callable) -> Callable:
        theirs = entry_point(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            is_traced = trace.is_tracing_thread()
            return ours(trace, *args, **kwargs) if is_traced else theirs(*args, **kwargs)

        return call

    check = entry_point("checks of values")

    def traced_check(
        error_type: type[Exception],
        cond: torch.Tensor | bool,
        message: Callable[[], str] | None = None,
    ) -> None:
        if isinstance(cond, JaxTensor) and cond.const is None:
            what = f": {message()}" if message is not None else ""
            check_values(f"torch._check{place_in_code()} fails{what}", ~cond.array().all())
        else:
            check(error_type, cond, message)

    # torch wraps the function to hide it from its compiler, and keeps the real one in this
    # attribute: replacing it there also reaches modules that imported the name before.
    hidden = "__dynamo_disable"
    before = getattr(plain, hidden, None)
    setattr(plain, hidden, traced_checkpoint)
    if plain is checkpoint:
        torch.utils.checkpoint.checkpoint = traced_checkpoint
    functions = {name: redirected(name, ours) for name, ours in _TRANSFORMATIONS.items()}
    try:
        with (
            traced_apply(),
            _checked_entry(trace, torch.autograd.graph.saved_tensors_hooks, _check_hooks),
            _checked_entry(trace, TorchDispatchMode, check_mode),
            refusing_seeds(trace),
            replaced({**functions, **ANY_FLEX_ATTENTION, "checks of values": traced_check}),
        ):
            yield
    finally:
        torch.utils.checkpoint.checkpoint = checkpoint
        if before is None:
            delattr(plain, hidden)
        else:
            setattr(plain, hidden, before)
