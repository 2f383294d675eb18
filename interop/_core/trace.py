"""One run of a module's code on JAX: its tensors, and its interface for other files.

Tensors stand for JAX arrays, constants, and tensors that the module's code brings.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import torch
from torch import nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from jaxsr.interop._core.dtypes import is_differentiable, to_jax_dtype, to_torch_dtype
from jaxsr.interop._core.forward_gradients import Gradients
from jaxsr.interop._core.registry import Entry
from jaxsr.interop._core.shared_memory import Originals, Window
from jaxsr.interop._core.tensor import Cell, JaxTensor, stop_gradient
from jaxsr.interop._core.trace_scope import Region, plain_torch
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import MissingKeyError, UnsupportedTorchError


class Trace(ABC):
    """One run of `apply`: its random key, its tensors, and who computes its operators.

    `Dispatcher` (`dispatch.py`) is the implementation; lowerings and everything below it know only
    this interface.
    """

    dispatch_mode: TorchDispatchMode
    """Gives every aten operator to this trace."""
    function_mode: TorchFunctionMode
    """Gives it torch's functions, before torch splits them into operators."""

    def __init__(self, rng: jax.Array | None, gradients: Gradients | None = None) -> None:
        self.rng = rng
        """The key that `apply` got."""
        self.draws = 0
        """Keys that were made of it so far."""
        self.state: set[Cell] = set()
        """The cells of parameters and buffers. Once written they differ from call to call."""
        self.code_globals: list[dict[str, Any]] = []
        """The globals of the code that runs, for `tensor_types.answering_types`."""
        self.thread: int | None = None
        """The thread that is being traced; None before and after."""
        self.refusals: list[UnsupportedTorchError] = []
        """Refusals so far, whoever caught them."""
        self.host_draws: list[str] = []
        """Generators of Python and NumPy that the code drew from."""
        self.gradients = gradients or Gradients()
        self.gradients.begin()
        self.adopted: dict[int, tuple[torch.Tensor, JaxTensor]] = {}
        """Constants by the id of the plain torch tensor, which comes first."""
        self.originals = Originals({})
        """Trained parameters of the module that was copied, which no code may read."""
        self.windows: Mapping[int, Window] = {}
        """Stand-ins of tensors in the memory of parameters, by id."""
        self.registered: Mapping[str, JaxTensor] = {}
        """Parameters and buffers by name."""
        self.placeholders: Mapping[int, str] = {}
        """Names of parameters and buffers by the id of the stand-in in the module's copy."""

        self.has_functions = False
        """Whether code has called an `autograd.Function`."""
        self.left: dict[nn.Module, dict[str, Any]] = {}
        """Attributes of modules after the call, but tensors, which a Function's backward reads."""

    @contextmanager
    def as_left(self) -> Generator[None]:
        """In this block, modules have the attributes and modes that the call left."""
        before = [(module, dict(vars(module))) for module in self.left]
        try:
            for module, attributes in self.left.items():
                vars(module).update(attributes)
            yield
        finally:
            for module, attributes in before:
                vars(module).clear()
                vars(module).update(attributes)

    def is_tracing_thread(self) -> bool:
        """Whether the calling thread is the one being traced."""
        return self.thread == threading.get_ident()

    def next_key(self) -> jax.Array:
        """A fresh key for each draw, the same for the same place in the program."""
        if self.rng is None:
            raise MissingKeyError(
                "the module draws random numbers but apply got no key; pass rng=jax.random.key(...)"
                " (a new one each step), or train=False where that turns dropout off"
            )
        self.draws += 1
        return jax.random.fold_in(self.rng, self.draws)

    def run(self, func: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        """Runs an aten operator, whether the caller is the module's code or this dispatcher."""
        is_on = _get_current_dispatch_mode() is self.dispatch_mode
        with nullcontext() if is_on else self.dispatch_mode:
            return func(*args, **kwargs)

    def as_jax_tensor(self, tensor: torch.Tensor) -> JaxTensor:
        """A tensor as the trace sees it: a plain torch tensor becomes a constant."""
        return tensor if isinstance(tensor, JaxTensor) else self.adopt(tensor)

    def wrap(self, array: Any, dtype: torch.dtype | None = None, owner: str = "") -> JaxTensor:
        """A new root tensor around a JAX array."""
        with plain_torch():
            meta = torch.empty(
                tuple(array.shape), dtype=dtype or to_torch_dtype(array.dtype), device="meta"
            )
        return JaxTensor(meta, Cell(self.gradients.distinct(array), None, owner))

    def wrap_like(self, array: Any, meta: torch.Tensor, needs_grad: bool) -> JaxTensor:
        """A new tensor around an array, a deferred one, or a function that makes the array."""
        if not torch.is_grad_enabled():
            array, needs_grad = stop_gradient(array), False
        array = self.gradients.distinct(array)
        return JaxTensor(meta, Cell(array, None), None, needs_grad and is_differentiable(meta))

    def wrap_const(self, value: torch.Tensor, owner: str = "") -> JaxTensor:
        """A new tensor whose value is a torch tensor that depends on no input."""
        value = value.detach()
        tensor = JaxTensor(value.to("meta"), Cell(None, value, owner))
        return tensor.set_const(value)

    def adopt(self, plain: torch.Tensor) -> JaxTensor:
        """An ordinary torch tensor in the module's code: a constant, or a view of a parameter."""
        window = self.windows.get(id(plain))
        if window is not None and window.placeholder is plain:
            return window.view(self, self.registered[window.name])
        name = self.placeholders.get(id(plain)) if plain.device.type == "meta" else None
        return self._adopt_constant(plain) if name is None else self.registered[name]

    @plain_torch()
    def _adopt_constant(self, plain: torch.Tensor) -> JaxTensor:
        adopted = self.adopted.get(id(plain))
        if adopted is None:
            if plain.device.type == "meta":
                raise UnsupportedTorchError(
                    "a tensor on the meta device that is neither parameter nor buffer has no "
                    "values; register it as a buffer, or build the module on the CPU"
                )
            name = self.originals.name_of(plain)
            if name is not None:
                raise UnsupportedTorchError(
                    f"code reads {name} of the module as it was before the conversion, through a "
                    "closure or a method bound to it (a forward or hook set on an instance), and "
                    "would not see new values; make it a method, or take the module as argument"
                )
            value = plain.detach().cpu()
            if value.is_sparse or value.is_quantized or value.layout != torch.strided:
                raise UnsupportedTorchError(
                    f"a {value.layout} or quantised tensor; convert it with .to_dense() first"
                )
            to_jax_dtype(value.dtype)
            tensor = JaxTensor(
                torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta"),
                Cell(None, value, "a torch tensor that is neither parameter nor buffer"),
            ).set_const(value)
            # The plain tensor is kept alive, so that no other one gets its id.
            adopted = self.adopted[id(plain)] = (plain, tensor)
        return adopted[1]

    def make_leaf(self, tensor: JaxTensor) -> None:
        """Lets gradients end at this tensor, which its code marks with `requires_grad_`."""
        if not self.gradients.recording:
            return
        array = self.gradients.distinct(tensor.array())
        if tensor.view_of is None:
            tensor.cell.value, tensor.cell.const = array, None
        else:
            tensor.cache = (tensor.cell.version, Region.current(), array)

    @abstractmethod
    def dispatch(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
        """Runs an aten operator as the registry says."""

    @abstractmethod
    def mark_input_free(
        self, func: Callable, arguments: tuple[tuple, dict], result: PyTree, draws: int
    ) -> None:
        """Notes whether a result follows from parameters, buffers and constants alone.

        Args:
          func: the operator or torch function.
          arguments: arguments of the call.
          result: its return value.
          draws: `self.draws` before the call: a random number counts as an input.
        """

    @abstractmethod
    def meta_result(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        """The result on torch's meta device: shapes, strides and dtypes.

        Raises:
          Exception: whatever torch raises for these arguments, which is the user's error.
        """

    @abstractmethod
    def functional(
        self, func: torch._ops.OpOverload, entry: Entry, args: tuple, kwargs: dict, metas: Any
    ) -> Any:
        """Runs an entry of the registry on JAX arrays.

        Args:
          func: the operator.
          entry: its lowering.
          args, kwargs: of torch.
          metas: results on the meta device, whose dtypes and strides the tensors get.
        """

    @abstractmethod
    def wrap_result(self, func: Callable, result: Any, metas: Any, needs_grad: bool) -> Any:
        """A lowering's arrays as tensors, in torch's dtypes and strides.

        Args:
          func: the operator or torch function, for errors.
          result: arrays, or a decomposition's tensors; in a sequence where torch returns several.
          metas: torch's results on the meta device.
          needs_grad: whether a gradient flows to the arguments; of tensors they say it themselves.

        Raises:
          UnsupportedTorchError: a shape differs, or a dtype that no cast makes right.
        """

    @abstractmethod
    def write(
        self,
        target: JaxTensor,
        value: jax.Array,
        needs_grad: bool,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        """Does `target[...] = value`, with gradients as the current grad mode has them.

        Args:
          target: any tensor, also a view.
          value: of the target's shape.
          needs_grad: whether a gradient flows to the value.
          bounds: least and greatest of the value's integers, where they are known.
        """

    @abstractmethod
    def resumed(self) -> "AbstractContextManager[Trace]":
        """Runs more of this trace's code later: see `trace_context.resumed`."""

    @abstractmethod
    def apply_function(self, cls: type[Function], args: tuple, kwargs: dict) -> Any:
        """Runs `cls.apply(*args)` with `cls.backward` as its derivative."""
