"""Runs aten operations on `JaxTensor`s: aliasing, `no_grad`, random keys, results checked.

Torch decomposes its functions into aten operators, the same ones that its CPU backend runs. Each
also runs on torch's meta device, which gives shapes, strides and dtypes; a lowering only gives the
values. A result of another shape than torch's raises, one of another dtype is cast.

`Dispatcher.dispatch` asks `registry` who computes an operator and acts on the answer.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.autograd import Function
from torch.utils import _pytree as pytree

from jaxsr.interop._core import registry, row_operators, selections, wide_integers
from jaxsr.interop._core.accumulation import widen_arguments
from jaxsr.interop._core.autograd_function import apply_function
from jaxsr.interop._core.deferred import Rewriter
from jaxsr.interop._core.dtypes import (
    cast,
    is_differentiable,
    to_jax_dtype,
    x64,
)
from jaxsr.interop._core.forward_gradients import Gradients
from jaxsr.interop._core.index_bounds import checked_indices
from jaxsr.interop._core.integer_bounds import bounds_of, fits
from jaxsr.interop._core.recipes import (
    known_value,
    places_for_masks,
    recipe_of,
    record,
    run_on_constants,
)
from jaxsr.interop._core.registry import Entry, Kind, is_overload
from jaxsr.interop._core.repeated_code import RepeatedCode
from jaxsr.interop._core.schema import (
    Schema,
    fit,
    fitting_scalars,
    in_order_of,
    name_of,
    promoted_scalars,
    schema_of,
)
from jaxsr.interop._core.stored_tensors import mark_whole, separate_constants, store_decided
from jaxsr.interop._core.tensor import JaxTensor, straight_through
from jaxsr.interop._core.torch_modes import TraceDispatchMode, TraceFunctionMode
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_context import resumed
from jaxsr.interop._core.views import make_views, without_grad
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import UnsupportedTorchError, forget_refusal

# Constants up to this many elements are evaluated by torch while tracing; larger ones are built by
# the compiled program, so that no large array is baked into it.
CONST_LIMIT = 1 << 16

_DETACH = torch.ops.aten.detach.default
_OF_SHAPE_ALONE = tuple(
    getattr(torch.ops.aten, name)
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
)
"""Operators whose results depend on the shape of a tensor and not on its values."""

PLACEMENT_OPTIONS = (
    "device", "layout", "pin_memory", "non_blocking", "memory_format", "generator",
)  # fmt: skip
"""Arguments of operators without a meaning for a JAX lowering."""


class Dispatcher(Trace):
    """A trace whose operators the registry's entries compute."""

    def __init__(
        self,
        rng: jax.Array | None,
        rewriter: Rewriter | None = None,
        gradients: Gradients | None = None,
    ) -> None:
        super().__init__(rng, gradients)
        # A gradient is taken of operations on plain arrays.
        self.rewriter = None if self.gradients.recording else rewriter
        self.repeated_code = RepeatedCode()
        self.dispatch_mode = TraceDispatchMode(self)
        self.function_mode = TraceFunctionMode(self)

    def resumed(self) -> AbstractContextManager[Trace]:
        return resumed(self)

    def apply_function(self, cls: type[Function], args: tuple, kwargs: dict) -> Any:
        return apply_function(self, cls, args, kwargs)

    def dispatch(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
        draws = self.draws
        self.repeated_code.note(func)
        if func.overloadpacket in _OF_SHAPE_ALONE:
            args = (self._as_shape(args[0], kwargs.get("dtype")), *args[1:])
        with checked_indices(func, args, kwargs):
            result = self._dispatch(func, args, kwargs)
        self.mark_input_free(func, (args, kwargs), result, draws)
        selections.note_origin(func, args, kwargs, result)
        return result

    def mark_input_free(
        self, func: Callable, arguments: tuple[tuple, dict], result: PyTree, draws: int
    ) -> None:
        tensors = [t for t in pytree.tree_leaves(arguments) if isinstance(t, JaxTensor)]
        input_free = self.draws == draws and all(t.cell.input_free for t in tensors)
        is_learned = any(t.cell.is_learned for t in tensors)
        if is_overload(func) and schema_of(func).mutated:
            for i, name, _ in schema_of(func).mutated:
                target = arguments[0][i] if i < len(arguments[0]) else arguments[1].get(name)
                for tensor in _as_list(target):
                    if isinstance(tensor, JaxTensor):
                        tensor.cell.input_free &= input_free and tensor.cell not in self.state
                        tensor.cell.is_learned |= is_learned
        elif input_free:
            for tensor in pytree.tree_leaves(result):
                if isinstance(tensor, JaxTensor):
                    tensor.cell.input_free = True
                    tensor.cell.is_learned |= is_learned
            if is_overload(func):
                record(func, arguments[0], arguments[1], result, self.as_jax_tensor)

    def _as_shape(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """A constant in the place of a tensor of which whole numbers or bools take the shape.

        So code may read them: masks of ones, the number of the molecule of each atom.
        """
        dtype = dtype or tensor.dtype
        if dtype.is_floating_point or dtype.is_complex:
            return tensor
        if not isinstance(tensor, JaxTensor) or tensor.selection is not None:
            return tensor
        return self.wrap_const(
            torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
        )

    def _dispatch(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
        entry = registry.resolve(func)
        if entry.kind is Kind.PYTHON:
            return func(*args, **kwargs)
        if entry.kind is Kind.REFUSED:
            raise entry.error(entry.reason)
        if entry.kind is Kind.LIFT:
            return entry.call(self, func, args, kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.as_jax_tensor, (args, kwargs))
        if kwargs.get("generator") is not None:
            raise UnsupportedTorchError(
                "a torch.Generator has no JAX counterpart; draw without generator= and pass rng="
            )
        schema = schema_of(func)
        leaves = pytree.tree_leaves((args, kwargs))
        if selections.among(leaves) and entry.kind is not Kind.COMPOSITE:
            return row_operators.run(self, func, args, kwargs)
        if self.rewriter is not None:
            done, result = self.rewriter.rewrite(self, func, args, kwargs)
            if done:
                return result
        if entry.kind is Kind.HANDLER:
            return entry.call(self, func, args, kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if entry.kind is Kind.COMPOSITE:
            # Reached directly from a Python decomposition; torch splits it up itself elsewhere.
            with self.dispatch_mode:
                return func.decompose(*args, **kwargs)
        tensors = [t for t in leaves if isinstance(t, JaxTensor)]
        if not schema.random and all(t.const is not None for t in tensors):
            done, result = self._constant(func, schema, entry, args, kwargs, tensors)
            if done:
                return result
        if entry.kind is Kind.VALUE:
            if all(known_value(t) is not None for t in tensors):
                return self._evaluated(func, args, kwargs, tensors)
            raise UnsupportedTorchError(
                f"{name_of(func)} needs the value of a traced tensor (.item(), bool(), a Python "
                "branch or size); use torch.where or torch.cond, or make it a Python number before "
                "apply"
            )
        if entry.kind is Kind.WRITE:
            return self._mutate(func, schema, entry.function, args, kwargs)
        if not self.gradients.recording:  # there an array is the tensor
            store_decided(func, args, kwargs)
        args = places_for_masks(func, args, self.wrap_const)
        try:
            metas = self.meta_result(func, args, kwargs)
        except UnsupportedTorchError as error:  # of a shape that depends on values
            if schema.random or any(known_value(t) is None for t in tensors):
                rows = selections.select(self, func, args)
                if rows is None:
                    raise
                forget_refusal(error)
                return rows
            forget_refusal(error)
            return self._evaluated(func, args, kwargs, tensors)
        if entry.kind is Kind.VIEW:
            return self._view(func, entry.function, args, kwargs, metas)
        if entry.kind is Kind.DECOMPOSITION:
            with self.dispatch_mode:
                return self.wrap_result(func, entry.call(*args, **kwargs), metas, False)
        if entry.kind is Kind.CUSTOM:
            with torch._C._EnableTorchFunction(), self.function_mode, self.dispatch_mode:  # pyright: ignore
                return self.wrap_result(func, entry.call(*args, **kwargs), metas, False)
        return self.functional(func, entry, args, kwargs, metas)

    def meta_result(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        margs, mkwargs = pytree.tree_map_only(JaxTensor, lambda t: t.meta, (args, kwargs))
        if "device" in mkwargs:
            mkwargs = {**mkwargs, "device": torch.device("meta")}
        try:
            return func(*margs, **mkwargs)
        except RuntimeError as e:
            unknown = isinstance(e, (NotImplementedError, DynamicOutputShapeException))
            # From a custom operator, and from repeat_interleave.
            texts = ("data-dependent shape", "without output_size")
            if not unknown and not any(text in str(e) for text in texts):
                raise
            raise UnsupportedTorchError(
                f"{name_of(func)}: the result's shape depends on values, or torch does not know it "
                "beforehand; use torch.where or a fixed size instead"
            ) from e

    def _constant(
        self,
        func: torch._ops.OpOverload,
        schema: Schema,
        entry: Entry,
        args: tuple,
        kwargs: dict,
        tensors: list[JaxTensor],
    ) -> tuple[bool, Any]:
        """Lets torch compute values that no input reaches; returns its success and the result."""
        try:
            results = pytree.tree_leaves(self.meta_result(func, args, kwargs))
        except UnsupportedTorchError as error:
            forget_refusal(error)
            results = tensors
        size = sum(t.numel() for t in results if isinstance(t, torch.Tensor))
        if size > CONST_LIMIT and not schema.is_view:
            return False, None
        for index, name, _ in schema.mutated:
            target = args[index] if index < len(args) else kwargs[name]
            for t in target if isinstance(target, (list, tuple)) else [target]:
                t.cell.before_write()
        if schema.is_view and tensors:
            cargs, ckwargs = pytree.tree_map_only(JaxTensor, lambda t: t.const, (args, kwargs))
            metas = self.meta_result(func, args, kwargs)
            consts = func(*cargs, **ckwargs)
            return True, self._view(func, entry.function, args, kwargs, metas, consts)
        return True, self._evaluated(func, args, kwargs, tensors)

    def _evaluated(
        self, func: torch._ops.OpOverload, args: tuple, kwargs: dict, tensors: list[JaxTensor]
    ) -> Any:
        """Torch's own result for tensors whose values are known."""
        known = pytree.tree_map_only(JaxTensor, known_value, (args, kwargs))
        result = run_on_constants(func, *known)
        by_const = {id(t.const): t for t in tensors}

        def as_tensor(value: torch.Tensor) -> JaxTensor:
            if id(value) not in by_const:
                return self.wrap_const(value)
            by_const[id(value)].cell.version += 1
            return by_const[id(value)]

        return pytree.tree_map_only(torch.Tensor, as_tensor, result)

    def _view(
        self,
        func: torch._ops.OpOverload,
        form: Callable | None,
        args: tuple,
        kwargs: dict,
        metas: Any,
        consts: Any = None,
    ) -> Any:
        parent: JaxTensor = args[0]
        if isinstance(metas, torch.Tensor) and (metas.is_conj() or metas.is_neg()):
            # The value is conjugated or negated at once; torch's lazy mark must not stay.
            metas = torch.ops.aten.alias.default(parent.meta)
        storage = parent.meta.untyped_storage()._cdata
        flat = _as_list(metas)
        if any(m.untyped_storage()._cdata != storage for m in flat):
            raise AssertionError(f"{name_of(func)} is not a view of its first argument")
        try:
            views = make_views(func, form, parent, args, kwargs, flat)
        except NotImplementedError as e:
            raise UnsupportedTorchError(
                f"{name_of(func)} reinterprets memory in a way that JAX arrays cannot; use a copy"
            ) from e
        if not torch.is_grad_enabled():
            views = [without_grad(v) for v in views]
        for view in views:
            view.parent.views.append(weakref.ref(view))
        needs = parent.needs_grad and torch.is_grad_enabled() and func is not _DETACH
        out = [
            JaxTensor(m, parent.cell, v, needs and is_differentiable(m))
            for m, v in zip(flat, views, strict=True)
        ]
        if consts is not None:
            for tensor, const in zip(out, _as_list(consts), strict=True):
                tensor.set_const(const)
        return out if isinstance(metas, (list, tuple)) else out[0]

    def functional(
        self, func: torch._ops.OpOverload, entry: Entry, args: tuple, kwargs: dict, metas: Any
    ) -> Any:
        if entry.function is None:
            raise UnsupportedTorchError(f"{func} has no JAX lowering; {registry.HOW_TO_ADD}")
        for meta in _as_list(metas):
            if isinstance(meta, torch.Tensor):
                to_jax_dtype(meta.dtype)  # or an error that names it
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, JaxTensor)]
        jargs, jkwargs = wide_integers.arrays_of(func, args, kwargs)
        jargs, jkwargs = promoted_scalars(func, (args, kwargs), (jargs, jkwargs), metas)
        jargs, constants = separate_constants(func, args, kwargs, jargs)
        jkwargs = {k: v for k, v in jkwargs.items() if k not in PLACEMENT_OPTIONS}
        jargs = widen_arguments(func, args, jargs, metas)
        if torch.Tag.pointwise in func.tags and not wide_integers.is_wide(list(jargs)):
            jargs = fitting_scalars(func, jargs)
        bounds = wide_integers.bounds_of_results(func, args, kwargs, metas)
        with jax.named_scope(name_of(func)):
            try:
                widens = wide_integers.widens(func, args, metas, bounds[0])
                if widens or wide_integers.is_wide(pytree.tree_leaves((jargs, jkwargs))):
                    narrow = [fits(limits) for limits in bounds]
                    result = wide_integers.wide_call(
                        func, entry.function, jargs, jkwargs, widens=widens, narrow=narrow
                    )
                else:
                    result = entry.function(*jargs, **jkwargs)
            except UnsupportedTorchError:
                raise
            except Exception as e:
                raise UnsupportedTorchError(
                    f"{name_of(func)} failed to lower to JAX: {type(e).__name__}: {e}"
                ) from e
        out = self.wrap_result(func, result, metas, any(t.needs_grad for t in tensors))
        if isinstance(out, JaxTensor):
            mark_whole(func, args, kwargs, out)
            out.cell.constants = constants
        wide_integers.note_bounds(out, bounds)
        return out

    def wrap_result(self, func: Callable, result: Any, metas: Any, needs_grad: bool) -> Any:
        metas_list, results = _as_list(metas), _as_list(result)
        if len(results) < len(metas_list):
            raise UnsupportedTorchError(
                f"{name_of(func)} gave {len(results)} results, not {len(metas_list)}"
            )

        def wrapped(value: Any, meta: object) -> Any:
            if not isinstance(meta, torch.Tensor) or value is None:
                return value
            if isinstance(value, JaxTensor):
                made = self.wrap_like(fit(func, value.array(), meta), meta, value.needs_grad)
                made.cell.bounds = bounds_of(value)
                return made
            return self.wrap_like(fit(func, value, meta), meta, needs_grad)

        tensors = [wrapped(*each) for each in zip(results, metas_list, strict=False)]
        if not isinstance(metas, (list, tuple)):
            return tensors[0]
        return tensors if type(metas) is list else tuple(tensors)

    def _mutate(
        self,
        func: torch._ops.OpOverload,
        schema: Schema,
        functional: Callable | None,
        args: tuple,
        kwargs: dict,
    ) -> Any:
        if functional is None:
            raise UnsupportedTorchError(
                f"{name_of(func)} changes its argument and has no functional form; "
                "assign the result of the out-of-place function instead"
            )
        names = {name for _, name, _ in schema.mutated}
        targets = [args[i] if i < len(args) else kwargs[name] for i, name, _ in schema.mutated]
        if schema.is_out:
            kwargs = {k: v for k, v in kwargs.items() if k not in names}
        else:
            self.meta_result(func, args, kwargs)
        args, kwargs = in_order_of(functional, func, args, kwargs)
        with self.dispatch_mode:
            result = functional(*args, **kwargs)
        for target, value in zip(targets, _as_list(result), strict=False):
            if isinstance(target, (list, tuple)):
                raise UnsupportedTorchError(f"{name_of(func)} writes into a list; use a loop")
            if schema.is_out and tuple(target.shape) != tuple(value.shape):
                raise UnsupportedTorchError(
                    f"{name_of(func)}: out has shape {tuple(target.shape)}, the result "
                    f"{tuple(value.shape)}; make them equal"
                )
            recipe, constants = recipe_of(value), value.cell.constants
            # A write that replaces the whole target, so that a deferred value may stay deferred.
            same_form = (target.shape, target.dtype) == (value.shape, value.dtype)
            replaces = same_form and target.view_of is None and torch.is_grad_enabled()
            if value.deferred is not None and replaces:
                target.needs_grad |= value.needs_grad
                target.cell.write(value.deferred)
            else:
                self.write(target, value.array(), value.needs_grad, bounds_of(value))
            target.cell.constants = constants
            if recipe is not None and same_form:
                recipe.describe(target)
        return tuple(targets) if schema.is_out and len(targets) > 1 else targets[0]

    def write(
        self,
        target: JaxTensor,
        value: jax.Array,
        needs_grad: bool,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        old = target.array()
        if target.dtype == torch.int64 and not x64():
            if jnp.issubdtype(value.dtype, jnp.inexact):
                with jax.enable_x64(True):
                    value = cast(value, jnp.int64)
            value = value if value.dtype == jnp.int64 else cast(value, jnp.int32)
            wide_integers.assign(target, jnp.broadcast_to(value, old.shape), bounds)
            return
        value = jnp.broadcast_to(cast(value, old.dtype), old.shape)
        if not torch.is_grad_enabled():
            value = straight_through(old, value) if is_differentiable(target.meta) else value
        elif needs_grad and is_differentiable(target.meta):
            target.needs_grad = True
            view = target.view_of
            while view is not None:
                view.parent.needs_grad = True
                view = view.parent.view_of
        target.assign(value)


def _as_list(value: Any) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@registry.lifts(torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)
def _lift(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> JaxTensor:
    """A tensor that the module's code makes of Python numbers."""
    (value,) = args
    return value if isinstance(value, JaxTensor) else trace.wrap_const(value.clone())
