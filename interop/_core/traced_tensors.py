"""Tensors of a trace: around JAX arrays, constants, and tensors that the module's code brings."""

from collections.abc import Mapping
from typing import Any

import torch

from jaxsr.interop._core.dtypes import is_differentiable, to_jax_dtype, to_torch_dtype
from jaxsr.interop._core.forward_gradients import Gradients
from jaxsr.interop._core.shared_memory import Originals, Window
from jaxsr.interop._core.tensor import Cell, JaxTensor, stop_gradient
from jaxsr.interop._core.trace_scope import Region, plain_torch
from jaxsr.interop.errors import UnsupportedTorchError


class TracedTensors:
    """Makes the tensors that stand for values in one run of `apply`."""

    def __init__(self, gradients: Gradients | None = None) -> None:
        self.gradients = gradients or Gradients()
        self.gradients.begin()
        self.adopted: dict[int, tuple[torch.Tensor, JaxTensor]] = {}
        self.originals = Originals({})
        """Trained parameters of the module that was copied, which no code may read."""
        self.windows: Mapping[int, Window] = {}
        """By id, what stands for tensors in the memory of parameters."""
        self.registered: Mapping[str, JaxTensor] = {}
        """Parameters and buffers by name."""
        self.placeholders: Mapping[int, str] = {}
        """Their names by the id of what stands for them in the copy of the module."""

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
