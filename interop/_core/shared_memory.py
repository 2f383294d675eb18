"""Tensors over the memory of parameters and buffers: finding and replacing them.

In torch `self.t = self.weight.data` follows the weight. Here each parameter and buffer is an array
of its own, so such a tensor is a view that each trace makes of it. All others are refused:
registered tensors that overlap, NumPy arrays over a trained parameter, constants over a buffer that
forward writes.
"""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from jaxsr.interop.errors import InputTypeError, UnsupportedTorchError


class OfThisProcess:
    """Knows tensors by their places in memory: copies share it, and no other process has it."""

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        del memo
        return self

    def __reduce__(self) -> Any:
        raise InputTypeError(
            "a module that to_jax converted cannot be pickled; pickle its arrays, and convert the "
            "torch module where they are loaded"
        )


class ByteRange(NamedTuple):
    """Bytes of a storage."""

    storage: int
    begin: int
    end: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "ByteRange | None":
        """From the first byte of a tensor to its last; None where it has no memory."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return None  # a subclass may have no storage
        if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type == "meta":
            return None
        if not tensor.numel():
            return None
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        size, offset = tensor.element_size(), tensor.storage_offset()
        storage = tensor.untyped_storage()
        return cls(storage._cdata, int(offset * size), int((offset + last + 1) * size))

    def meets(self, other: "ByteRange") -> bool:
        """Whether some bytes lie between the first and last of both."""
        same = self.storage == other.storage
        return same and self.begin < other.end and other.begin < self.end


def overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have an element in common."""
    a, b = ByteRange.of(first), ByteRange.of(second)
    if a is None or b is None or not a.meets(b):
        return False
    if first.dtype != second.dtype or (first.is_contiguous() and second.is_contiguous()):
        return True
    size = first.element_size()
    marks = torch.zeros(max(a.end, b.end) // size, dtype=torch.bool)

    def places(tensor: torch.Tensor) -> torch.Tensor:
        return marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    places(first).fill_(True)
    return bool(places(second).any())


def refuse_shared_storage(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuses two registered tensors that overlap: as separate arrays they would drift apart."""
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in tensors.items():
        if (span := ByteRange.of(tensor)) is None:
            continue
        others = by_storage.setdefault(span.storage, [])
        for other_name, other in others:
            if overlap(tensor, other):
                raise UnsupportedTorchError(
                    f"{name} and {other_name} are different tensors over the same memory; tie them "
                    "by assigning the same Parameter to both, or clone one"
                )
        others.append((name, tensor))


@dataclasses.dataclass(frozen=True)
class Window:
    """A tensor in the memory of a parameter, as a view of it."""

    name: str
    """Name of the parameter."""
    placeholder: torch.Tensor
    """Its stand-in in the module's copy, on the meta device."""
    offset: int
    detached: bool
    refusal: str = ""
    """Why it cannot be one."""

    def view(self, trace: Any, tensor: torch.Tensor) -> Any:
        """The view of the parameter's tensor in a trace."""
        if self.refusal:
            raise UnsupportedTorchError(self.refusal)
        aten, shape = torch.ops.aten, self.placeholder.shape
        if self.detached:
            tensor = trace.run(aten.detach.default, tensor)
        if shape == tensor.shape and self.placeholder.stride() == tensor.stride():
            return tensor
        if self.placeholder.is_contiguous() and shape.numel() == tensor.numel():
            return trace.run(aten.view.default, tensor, list(shape))
        strides = list(self.placeholder.stride())
        return trace.run(aten.as_strided.default, tensor, list(shape), strides, self.offset)


def copy_registered(
    registered: Mapping[str, torch.Tensor],
    tensors: Sequence[torch.Tensor],
    arrays: Sequence[np.ndarray],
    memo: dict[int, Any],
) -> None:
    """Copies parameters and buffers; tensors in their memory become views of the copies.

    Args:
      registered: parameters and buffers by name.
      tensors: all that may be views of them.
      arrays: NumPy arrays that may be.
      memo: copies by the `id` of the original, as for `copy.deepcopy`; gets these.
    """
    largest = sorted(registered.values(), key=lambda tensor: -tensor.numel())
    spans: dict[int, list[tuple[torch.Tensor, ByteRange, torch.Tensor]]] = {}

    def copied_view(tensor: torch.Tensor, span: ByteRange) -> torch.Tensor | None:
        for slot, place, twin in spans.get(span.storage, ()):
            inside = place.begin <= span.begin and span.end <= place.end
            if inside and tensor.dtype == slot.dtype and twin.stride() == slot.stride():
                offset = tensor.storage_offset() - slot.storage_offset()
                source = twin if tensor.grad_fn is not None else twin.detach()
                return source.as_strided(tensor.shape, tensor.stride(), offset)
        return None

    for slot in largest:
        span = ByteRange.of(slot)
        view = None if span is None or id(slot) in memo else copied_view(slot, span)
        if view is not None:
            is_parameter = isinstance(slot, torch.nn.Parameter)
            memo[id(slot)] = torch.nn.Parameter(view, slot.requires_grad) if is_parameter else view
        twin = copy.deepcopy(slot, memo)
        if span is not None:
            spans.setdefault(span.storage, []).append((slot, span, twin))
    for tensor in tensors:
        span = None if id(tensor) in memo else ByteRange.of(tensor)
        if span is not None and (view := copied_view(tensor, span)) is not None:
            memo[id(tensor)] = view
    addresses = {
        slot.untyped_storage().data_ptr(): place
        for parts in spans.values()
        for slot, place, twin in parts
        if twin.device.type == "cpu"
    }
    for array in arrays:
        low, high = np.lib.array_utils.byte_bounds(array)
        for address, place in addresses.items():
            if address + place.begin <= low and high <= address + place.end:
                tensor = torch.as_tensor(array)
                slot, _, twin = spans[place.storage][0]
                offset = (tensor.data_ptr() - slot.data_ptr()) // tensor.element_size()
                if tensor.dtype == twin.dtype and twin.stride() == slot.stride():
                    view = twin.detach().as_strided(tensor.shape, tensor.stride(), offset)
                    memo[id(array)] = view.numpy()


class SharedMemory:
    """Tensors that a module keeps in the memory of its parameters and buffers.

    Args:
      registered: parameters and buffers by name.
      parameters: names of those that are parameters.
      tensors: all tensors that the module's code can reach.
      arrays: all NumPy arrays.

    Raises:
      UnsupportedTorchError: one overlaps a parameter in a way that is not a view of it.
    """

    def __init__(
        self,
        registered: Mapping[str, torch.Tensor],
        parameters: frozenset[str],
        tensors: Sequence[torch.Tensor],
        arrays: Sequence[np.ndarray],
    ) -> None:
        self.windows: dict[int, Window] = {}
        """By id of the tensor that stands there now."""
        self.constants: list[tuple[str, torch.Tensor | np.ndarray]] = []
        """Names of buffers, and tensors or arrays that keep their first values."""
        ids = {id(tensor) for tensor in registered.values()}
        spans = [(name, t, span) for name, t in registered.items() if (span := ByteRange.of(t))]
        by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, slot, span in spans:
            by_storage.setdefault(span.storage, []).append((name, slot))
        for tensor in tensors:
            span = None if id(tensor) in ids else ByteRange.of(tensor)
            for name, slot in () if span is None else by_storage.get(span.storage, ()):
                if overlap(tensor, slot):
                    if name in parameters:
                        self.windows[id(tensor)] = _window(name, slot, tensor)
                    else:
                        self.constants.append((name, tensor))
                    break
        addresses = [
            (name, t.untyped_storage().data_ptr() + span.begin, span) for name, t, span in spans
        ]
        for array in arrays:
            low, high = np.lib.array_utils.byte_bounds(array)
            for name, begin, span in addresses:
                if not (low < begin + span.end - span.begin and begin < high):
                    continue
                self.constants.append((name, array))
                if name in parameters:
                    raise UnsupportedTorchError(
                        f"the module keeps a NumPy array over the memory of {name}, which a "
                        "compiled function would read once; keep the tensor, or a copy"
                    )


def _window(name: str, slot: torch.Tensor, tensor: torch.Tensor) -> Window:
    a, b = ByteRange.of(tensor), ByteRange.of(slot)
    assert a is not None and b is not None
    same = (tensor.shape, tensor.stride()) == (slot.shape, slot.stride())
    inside = b.begin <= a.begin and a.end <= b.end and slot.is_contiguous()
    refusal = ""
    if tensor.dtype != slot.dtype or not (inside or (same and a == b)):
        refusal = (
            f"code reads a tensor of shape {tuple(tensor.shape)} over a part of the memory of "
            f"{name}; keep a view of {name} alone, or a clone"
        )
    stride = tensor.stride()
    if same:  # a trace lays its tensors out in order
        stride = torch.empty(tensor.shape, device="meta").stride()
    return Window(
        name=name,
        placeholder=torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device="meta"),
        offset=int(tensor.storage_offset() - slot.storage_offset()),
        detached=tensor.grad_fn is None,
        refusal=refusal,
    )


class Originals:
    """The memory of a module's trained parameters before the conversion, which no code may read.

    Args:
      parameters: by name.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self._places: dict[int, list[tuple[str, ByteRange]]] = {}
        self._storages: list[StorageWeakRef] = []
        for name, tensor in parameters.items():
            if (span := ByteRange.of(tensor)) is not None:
                # A weak reference to a storage keeps its address from being used again.
                self._storages.append(StorageWeakRef(tensor.untyped_storage()))
                self._places.setdefault(span.storage, []).append((name, span))

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The parameter that a tensor overlaps."""
        span = ByteRange.of(tensor) if self._places else None
        if span is None:
            return None
        return next((n for n, s in self._places.get(span.storage, ()) if s.meets(span)), None)
