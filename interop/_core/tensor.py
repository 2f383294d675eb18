"""The torch tensor that carries a JAX array, with torch's aliasing.

Torch code writes into views; JAX arrays cannot be written. So several `JaxTensor`s may share one
`Cell`: the cell owns the value, a view knows its parent and the aten operation that made it. A
read replays that operation when the cell has changed; a write goes back through it to the cell.

Each `JaxTensor` also has a tensor on torch's meta device (`meta`), on which every operation runs as
well. It gives torch's shapes, strides, dtypes and error messages.

Values that depend on no input (masks, position tables, counters) stay ordinary torch CPU tensors
inside their cell, and torch computes them. So `.item()`, `if mask.any():` and data-dependent shapes
work on constants.
"""

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
import torch
from jax import Array, lax

from jaxsr.interop._core.deferred import ChannelArray, DeferredArray
from jaxsr.interop._core.differentiated import asked_by_user, is_differentiated
from jaxsr.interop._core.dtypes import constant_to_jax
from jaxsr.interop._core.trace_scope import Region, running_trace
from jaxsr.interop.errors import GradientInForwardError, UnsupportedTorchError
from jaxsr.interop.python_values import attributes_of

BACKWARD_IN_FORWARD = (
    "backward() inside forward; take the gradient with torch.autograd.grad(outputs, inputs), or "
    "return the loss and let the training step differentiate it"
)

OTHER_CLASS = (
    "a tensor of a trace becomes one of a subclass of torch.Tensor (as_subclass, _make_subclass, "
    "MyTensor(x)), whose methods the trace would not keep; use functions of plain tensors"
)

_IN_ORDER = {"memory_format": torch.contiguous_format}


@jax.custom_jvp
def straight_through(old: jax.Array, new: jax.Array) -> jax.Array:
    """`new`, with the gradient going to `old`: torch's meaning of a write under `no_grad`."""
    del old
    return new


@straight_through.defjvp
def _straight_through_jvp(primals, tangents):
    # Not `primals[1]`, whose own derivative a second one would then be taken of.
    return straight_through(*primals), tangents[0]


class Cell:
    """The storage that a tensor and all its views share.

    `value` is the JAX array of the root tensor, or None while `const`, a real torch tensor, holds
    it. It may be set to a `DeferredArray`, or to a function that makes the array at the first read.
    `owner` names the other user of the storage, in words for a write's error; "" if there is no
    other. `input_free` holds where the value follows from parameters, buffers and constants alone,
    and `is_learned` where a trained parameter is among these. `origin` is the computation of a mask
    (`selections.py`), until the first write to it. `bounds` are those of integers, where the trace
    knows them (`wide_integers.py`). `stored` is the value last stored for all readers, `is_whole`
    says that floats need not be, `constants` are those last added or multiplied (`stored_tensors`).
    """

    __slots__ = (
        "_lazy", "_settled", "_value", "bounds", "const", "constants", "input_free", "is_learned",
        "is_whole", "origin", "owner", "region", "stored", "version",
    )  # fmt: skip

    _lazy: DeferredArray | Callable[[], jax.Array] | None
    _settled: tuple[Region | None, ChannelArray] | None
    _value: Any

    def __init__(self, value: Any, const: torch.Tensor | None, owner: str = "") -> None:
        self.value = value
        self.const = const
        self.owner = owner
        self.version, self.constants = 0, None
        self.origin: tuple | None = None
        self.stored: jax.Array | None = None
        self.bounds: tuple[int, int] | None = None
        self.input_free = const is not None
        self.is_learned = self.is_whole = False
        self.region = Region.current()

    @property
    def value(self) -> Any:
        """The JAX array, made once of a deferred value."""
        if self._lazy is None:
            if not Region.alive(self.region):
                raise UnsupportedTorchError(
                    "a tensor made inside a torch.autograd.Function, a checkpoint or torch.vmap is "
                    "read after it has ended (a list or an attribute kept it); return it from there"
                )
            return self._value
        made = self._value
        if made is None or not Region.alive(made[0]):
            made = self._value = (Region.current(), self._dense(self._lazy))
        return made[1]

    def _dense(self, lazy: DeferredArray | Callable[[], jax.Array]) -> jax.Array:
        if not isinstance(lazy, DeferredArray):
            return lazy()
        # Once settled, the pixels are not moved a second time in another way.
        return lazy.dense() if self._settled is None else self.settled().dense()

    @value.setter
    def value(self, value: Any) -> None:
        lazy = isinstance(value, DeferredArray) or (
            callable(value) and not isinstance(value, jax.Array)
        )
        self._lazy = value if lazy else None
        self._value = None if lazy else value
        self._settled = None

    @property
    def deferred(self) -> DeferredArray | None:
        """The value, where it is deferred."""
        return self._lazy if isinstance(self._lazy, DeferredArray) else None

    def settled(self) -> ChannelArray:
        """A deferred value in its settled form, made once."""
        made = self._settled
        if made is None or not Region.alive(made[0]):
            assert isinstance(self._lazy, DeferredArray)
            made = self._settled = (Region.current(), self._lazy.settled())
        return made[1]

    def read(self) -> jax.Array:
        """The JAX array of the root tensor."""
        if self.const is not None:
            return constant_to_jax(self.const)
        return self.value

    def write(self, value: jax.Array) -> None:
        """Replaces the root's value; every view sees it at its next read."""
        self.before_write()
        self.value, self.is_whole = value, False
        self.const = self.bounds = self.constants = None
        self.version += 1

    def before_write(self) -> None:
        """Refuses a write that somebody else would have to see, and tells the running regions."""
        if self.owner:
            raise UnsupportedTorchError(
                f"writes into {self.owner}, which would keep the value in torch and lose it here; "
                "write into a clone, or let apply return it as a buffer: `register_buffer`, or "
                "`requires_grad_(False)` for a parameter"
            )
        Region.log_write(self)


class GraphNode:
    """The `grad_fn` of a tensor: a placeholder without a torch graph."""

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedTorchError(
            f"grad_fn.{name}: JAX keeps no graph of torch's; `grad_fn is None` is answered, and a "
            "torch.autograd.Function changes gradients"
        )


class View:
    """How a view reads from its parent and writes back to it."""

    __slots__ = ("__weakref__", "detached", "dynamic", "parent", "read", "write")

    def __init__(
        self,
        parent: "JaxTensor",
        read: Callable[[jax.Array], jax.Array],
        write: Callable[[jax.Array, jax.Array], jax.Array] | None,
        detached: bool = False,
    ) -> None:
        self.detached = detached
        self.dynamic = False  # its place depends on a traced index
        self.parent = parent
        self.read = read
        self.write = write


class JaxTensor(torch.Tensor):
    """A torch tensor whose value is a JAX array; it lives only inside `JaxModule.apply`."""

    meta: torch.Tensor
    cell: Cell
    view_of: View | None
    cache: tuple[int, Region | None, Array] | None
    cell_const: torch.Tensor | None
    selection: Any
    """Which rows count, where a mask has selected them (`selections.py`)."""
    recipe: tuple[int, Any] | None
    """Its `Recipe`, and since which version of the cell."""
    views: "list[weakref.ref[View]]"
    """Those made of it."""
    is_frozen: bool
    """Whether `requires_grad_(False)` keeps gradients from a parameter."""
    is_used: bool
    """Whether an operator other than a view has read it while gradients were on."""
    is_marked_leaf: bool
    """Whether torch's graph begins with it: a parameter, or marked with `requires_grad_`."""
    home: "JaxTensor | None"
    """The cell before `.data` was set to another tensor's memory."""
    needs_grad: bool
    _is_param: bool
    """Which torch reads: `isinstance(tensor, nn.Parameter)`."""
    trace_attributes: ClassVar[frozenset[str]]

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(
        cls, meta: torch.Tensor, cell: Cell, view_of: View | None = None, needs_grad: bool = False
    ) -> "JaxTensor":
        self: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.size(),
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=torch.device("cpu"),
            requires_grad=False,
        )
        self.meta = meta
        self.cell = cell
        self.view_of = view_of
        self.needs_grad = needs_grad
        self.cache = self.cell_const = self.recipe = self.selection = None
        self.views, self.home, self.is_used, self.is_frozen = [], None, False, False
        self.is_marked_leaf = False
        return self

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Nothing: `torch.Tensor(2, 3)` in a module's code makes one and calls this with (2, 3)."""

    @property
    def __class__(self) -> type:
        """torch's class, for code that asks; `type(tensor)` answers alike (`tensor_types.py`)."""
        return torch.nn.Parameter if vars(self).get("_is_param") else torch.Tensor

    @property
    def root(self) -> "JaxTensor":
        """The tensor that it is a view of, or a view of a view; else itself."""
        tensor = self
        while tensor.view_of is not None:
            tensor = tensor.view_of.parent
        return tensor

    def twin(self) -> "JaxTensor":
        """Another tensor object for the same memory and shape."""
        twin = JaxTensor(self.meta, self.cell, self.view_of, self.needs_grad)
        twin.cell_const, twin.recipe = self.cell_const, self.recipe
        return twin

    def become(self, other: "JaxTensor") -> None:
        """Takes over the value of `other`; the caller has given both the same shape."""
        self.meta, self.cell, self.view_of = other.meta, other.cell, other.view_of
        self.cell_const, self.recipe, self.cache = other.cell_const, other.recipe, None

    @classmethod
    def __torch_dispatch__(  # pyright: ignore
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        trace = running_trace()
        if trace is not None and trace.is_tracing_thread():  # modes are off where torch does this
            raise UnsupportedTorchError(OTHER_CLASS)
        if trace is not None:
            error = UnsupportedTorchError(
                f"{func} in a thread that forward starts; call it in forward's own thread"
            )
            trace.refusals.append(error)  # Python prints an exception that ends a thread, and goes
            # on
            raise error
        raise UnsupportedTorchError(
            f"{func} met a tensor of a traced module outside JaxModule.apply; "
            "it was kept from a trace that has ended (a closure, a global, a hook's list)"
        )

    @property
    def const(self) -> torch.Tensor | None:
        """The real torch tensor, where the value depends on no input; an alias of the cell's."""
        return self.cell_const if self.cell.const is not None else None

    @property
    def deferred(self) -> DeferredArray | None:
        """The current value, where it is deferred."""
        return self.cell.deferred if self.view_of is None and self.cell.const is None else None

    def settled(self) -> ChannelArray | None:
        """The current value as a `ChannelArray`, where it is deferred; else None."""
        return None if self.deferred is None else self.cell.settled()

    def content(self) -> jax.Array | ChannelArray:
        """The current value as a pytree: settled where it is deferred, else the array."""
        settled = self.settled()
        return self.array() if settled is None else settled

    def array(self) -> jax.Array:
        """The current value."""
        self.is_used |= torch.is_grad_enabled()
        return self._array()

    def _array(self) -> jax.Array:
        if self.selection is not None:
            raise UnsupportedTorchError(
                "rows that a mask selects are returned, or used where their number counts, which "
                "depends on values; return torch.where(mask, …, 0) and the mask"
            )
        const = self.const
        if const is not None:
            return constant_to_jax(const)
        if self.view_of is None:
            return stop_gradient(self.cell.value) if self.is_frozen else self.cell.value
        cache = self.cache
        if cache is not None and cache[0] == self.cell.version and Region.alive(cache[1]):
            return cache[2]
        value = self.view_of.read(self.view_of.parent._array())
        self.cache = (self.cell.version, Region.current(), value)
        return value

    def assign(self, value: jax.Array) -> None:
        """Writes `value` (same shape and dtype) into this tensor and all that share its storage."""
        if self.view_of is None:
            self.cell.write(value)
            return
        if self.view_of.write is None:
            raise UnsupportedTorchError(
                f"an in-place write into a view of shape {tuple(self.shape)} in which several "
                "elements share memory (expand, unfold); write into a clone"
            )
        parent = self.view_of.parent
        parent.assign(self.view_of.write(parent.array(), value))
        self.cache = (self.cell.version, Region.current(), value)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        del tensor_contents
        return f"JaxTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    def __format__(self, spec: str) -> str:
        if self.dim() == 0 and spec:  # of a value: refused where the program computes it
            return format(self.item(), spec)
        return repr(self)

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        if not self.needs_grad and asked_by_user():
            self.needs_grad = is_differentiated(self)
        return self.needs_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(bool(value))

    def requires_grad_(self, requires_grad: bool = True) -> "JaxTensor":
        if requires_grad and not self.needs_grad and not self.is_frozen:
            if (trace := running_trace()) is not None:
                trace.make_leaf(self)
            self.is_marked_leaf = True
        # A parameter's, an input's or a leaf's gradient ends; other tensors have no gradient.
        has_gradient = self.needs_grad or self.is_frozen or self.is_marked_leaf
        self.is_frozen = not requires_grad and has_gradient
        self.needs_grad = requires_grad
        return self

    @property
    def grad(self) -> None:  # type: ignore[override]
        return None

    def retain_grad(self) -> None:
        """Nothing: no `backward` runs inside of forward that would fill `grad`."""

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        return self.is_marked_leaf or not self.requires_grad

    @property
    def grad_fn(self) -> "GraphNode | None":  # type: ignore[override]
        return None if self.is_leaf else GraphNode()

    @property
    def _version(self) -> int:  # type: ignore[override]
        if self.cell in running_trace().state:
            raise UnsupportedTorchError(
                "_version of a parameter or buffer also counts writes outside of forward; keep a "
                "number of your own in a buffer"
            )
        return self.cell.version

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if tuple(new.shape) != tuple(self.shape) or new.dtype != self.dtype:
            raise UnsupportedTorchError(
                f".data was set to shape {tuple(new.shape)} {new.dtype} on a tensor of shape "
                f"{tuple(self.shape)} {self.dtype}; keep shape and dtype, or make a new tensor"
            )
        trace = running_trace()
        memory: JaxTensor = trace.as_jax_tensor(new)  # pyright: ignore[reportAssignmentType]
        if memory.stride() != self.stride():  # a tensor keeps its own: this one sees a copy
            memory = trace.run(torch.ops.aten.clone.default, memory, **_IN_ORDER)
        place = (memory.cell, memory.stride(), memory.storage_offset())
        if place == (self.cell, self.stride(), self.storage_offset()):
            return  # `module.to(dtype)` with the dtype that it has
        if self.needs_grad and self.is_used and torch.is_grad_enabled():
            raise UnsupportedTorchError(
                ".data of a trained tensor is set after a use, whose gradient torch would compute "
                "with the new value; use torch.no_grad(), or torch.func.functional_call"
            )
        before = self.twin()
        before.viewed_by(self.views)
        self.views = []
        home = before if self.home is None else self.home
        if place == (home.cell, home.stride(), home.storage_offset()):
            self.become(home)
            self.home = None
            home.viewed_by(self.views)
            return
        # From here on both see writes into either; gradients go to this tensor's own. An input's
        # gradient is asked for by JAX: torch's requires_grad does not show it.
        differentiable = self.dtype.is_floating_point or self.dtype.is_complex
        old = before.array() if differentiable and before.cell_const is None else None
        view = View(
            memory,
            lambda value: stop_gradient(value) if old is None else straight_through(old, value),
            lambda value, new: straight_through(value, stop_gradient(new)),
            detached=True,
        )
        memory.views.append(weakref.ref(view))  # pyright: ignore[reportArgumentType]
        self.meta, self.cell, self.view_of = memory.meta, memory.cell, view
        self.cell_const, self.recipe, self.cache = None, None, None
        if old is None:
            self.cell_const = memory.cell_const
        self.home = home

    @property
    def is_moved(self) -> bool:
        """Whether its `.data` is in the memory of another tensor."""
        return self.home is not None

    def has_set(self, attributes: dict[str, Any]) -> bool:
        """Whether these attributes and no others are set on it."""
        now = attributes_of(self)
        return now.keys() == attributes.keys() and all(now[k] is attributes[k] for k in now)

    def viewed_by(self, views: "list[weakref.ref[View]]") -> None:
        """Makes it the parent of views."""
        for reference in views:
            if (view := reference()) is not None:
                view.parent = self
        self.views = self.views + views

    def register_hook(self, hook: Callable) -> None:  # type: ignore[override]
        raise UnsupportedTorchError(
            "Tensor.register_hook changes gradients, which JAX would not see; "
            "write a torch.autograd.Function with that backward"
        )

    def backward(self, *args: object, **kwargs: object) -> None:
        raise GradientInForwardError(BACKWARD_IN_FORWARD)

    def as_subclass(self, cls: type) -> torch.Tensor:  # type: ignore[override]
        if cls is torch.Tensor:
            return self.view_as(self)
        raise UnsupportedTorchError(OTHER_CLASS)

    def set_const(self, const: torch.Tensor) -> "JaxTensor":
        self.cell_const = const
        return self

    # The last of the class: within it the name `jax` is this method from here on.
    def jax(self) -> jax.Array:
        """The current value, under the name by which libraries ask whether `jax.jit` traces."""
        return self.array()


# Others are set by the module's code. Python 3.14 has annotations of complete classes alone.
JaxTensor.trace_attributes = frozenset(inspect.get_annotations(JaxTensor))


def stop_gradient(value: Any) -> Any:
    """`lax.stop_gradient` for the dtypes that have gradients."""
    if isinstance(value, DeferredArray):
        return value.map_array(stop_gradient)
    if not hasattr(value, "dtype"):
        return lambda: stop_gradient(value())
    floating = np.issubdtype(value.dtype, np.inexact) or value.dtype == jax.numpy.bfloat16
    return lax.stop_gradient(value) if floating else value
