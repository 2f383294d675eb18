"""oneDNN's convolutions by its C interface, where a library of its own is installed.

torch calls the same kernels, but gives them memory of its own: each call then costs an allocation,
and a copy into the memory of XLA's program. `pip install onednn-cpu-gomp` (the extra `cpu`) brings
oneDNN as a library with the interface that torch hides. With the same kernels the results are
torch's to the bit.

It stays beside torch's calls because whole programs with it take less processor time than the same
programs without it, or as much.

float32, channels last in memory; `convolve` says where torch has to compute. References: oneDNN's
developer guide, `dnnl.h` of version 3.
"""

import contextlib
import ctypes
import ctypes.util
import dataclasses
import functools
import importlib.metadata
import math
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from ctypes import POINTER, Structure, byref, c_int, c_int64, c_size_t, c_uint, c_void_p
from typing import Any, Literal

import torch

from jaxsr.xla_calls.calls import is_native

Role = Literal["out", "input", "weight"]

DISTRIBUTION = "onednn-cpu-gomp"
"""On PyPI: oneDNN for GNU's OpenMP, which torch's own threads come from."""

# From dnnl_types.h.
_CPU, _OPENMP, _FLOAT32, _ANY_FORMAT = 1, 2, 3, 1
_OUT_OF_MEMORY = 1
_FORWARD_TRAINING, _DIRECT, _USER_SCRATCHPAD = 64, 1, 1
_ARGUMENT_MD = 255
_SRC, _DST, _WEIGHTS, _BIAS, _SCRATCHPAD = 1, 17, 33, 41, 80
_DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS = 129, 145, 161
_NO_MEMORY_YET = c_void_p(2**64 - 1)


class _Version(Structure):
    _fields_ = [
        ("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", c_void_p),
        ("cpu_runtime", c_uint), ("gpu_runtime", c_uint),
    ]  # fmt: skip


class _Argument(Structure):
    _fields_ = [("index", c_int), ("memory", c_void_p)]


@functools.cache
def version() -> str | None:
    """Version of the library that `convolve` calls, such as 3.2.0; None if it is absent."""
    library = _library()
    if library is None:
        return None
    release = library.dnnl_version().contents
    return f"{release.major}.{release.minor}.{release.patch}"


@functools.cache
def _library() -> Any:
    """oneDNN 3 that computes with OpenMP, or None."""
    path = _installed() or ctypes.util.find_library("dnnl")
    if path is None:
        return None
    try:
        library = ctypes.CDLL(path)
    except OSError:  # another system's, or without the OpenMP that it needs
        return None
    library.dnnl_version.restype = POINTER(_Version)
    library.dnnl_primitive_desc_query_md.restype = c_void_p
    library.dnnl_memory_desc_get_size.restype = c_size_t
    release = library.dnnl_version().contents
    return library if (release.major, release.cpu_runtime) == (3, _OPENMP) else None


def _installed() -> str | None:
    """The library's file in the distribution from PyPI."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((str(f.locate()) for f in files if f.name == "libdnnl.so.3"), None)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A convolution's numbers for each spatial axis, and its groups of channels."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def has_unit_stride(self) -> bool:
        """Whether the kernel moves by one pixel at a time."""
        return all(stride == 1 for stride in self.stride)

    @property
    def is_pointwise(self) -> bool:
        """Whether a kernel of one pixel maps each pixel by itself."""
        return self.has_unit_stride and not any(self.padding) and self.groups == 1


def convolve(
    role: Role,
    image: torch.Tensor,
    other: torch.Tensor,
    result: torch.Tensor,
    geometry: Geometry,
    bias: torch.Tensor | None = None,
) -> bool:
    """Writes a convolution or one of its gradients into `result`.

    Args:
      role: which array of the convolution the result is: `out` of (x, w), `input` of (g, w),
        `weight` of (x, g).
      image: the first operand, x (N, C, ...) or g (N, O, ...).
      other: the second one, w (O, C / groups, ...) or g.
      result: the third of x, w and g, written in place.
      geometry: of the convolution.
      bias: (O,), for `out`.

    Returns:
      Whether it was done. Otherwise nothing was, and torch has to: without the library, for other
      dtypes than float32, for images whose channels are not last in memory, and where oneDNN has
      no kernel.

    Raises:
      MemoryError: oneDNN has no memory for it.
      RuntimeError: its kernel failed.
    """
    library = _library() if is_native() else None
    if library is None:
        return False
    x, w, y = {
        "out": (image, other, result),
        "input": (result, other, image),
        "weight": (image, result, other),
    }[role]
    if any(t.dtype != torch.float32 for t in (x, w, y)) or not w.is_contiguous():
        return False
    if not all(t.movedim(1, -1).is_contiguous() for t in (x, y)):
        return False
    multiplications = y.numel() * w[0].numel()
    threads = torch.get_num_threads() if multiplications >= _LEAST_SHARED else 1
    shapes = (tuple(x.shape), tuple(w.shape), tuple(y.shape))
    with _openmp_threads(threads):
        plan = _plan(role, *shapes, bias is not None, geometry, threads)
        if plan is None:
            return False
        plan.run(x, w, y, bias)
    return True


_LEAST_SHARED = 1 << 23
"""Multiplications from which on threads share a convolution: waking one takes about 30 µs."""


@contextlib.contextmanager
def _openmp_threads(threads: int) -> Generator[None]:
    """Sets the calling thread's number; a build of torch may have an OpenMP of its own."""
    library: Any = _library()
    before = library.omp_get_max_threads()
    if threads != before:
        library.omp_set_num_threads(threads)
    try:
        yield
    finally:
        if threads != before:
            library.omp_set_num_threads(before)


class _Failed(RuntimeError):
    """oneDNN refused: while a primitive is described, because it has no such kernel."""


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_library(), name)(*arguments)
    if status == _OUT_OF_MEMORY:
        raise MemoryError(f"oneDNN: {name}: out of memory")
    if status:
        raise _Failed(f"oneDNN: {name} returned status {status}")


class _Handle:
    """An object of oneDNN's, destroyed with this one."""

    def __init__(self, kind: str, create: str, *arguments: Any) -> None:
        self.pointer = c_void_p()
        _call(create, byref(self.pointer), *arguments)
        destroy = getattr(_library(), f"dnnl_{kind}_destroy")
        weakref.finalize(self, destroy, self.pointer).atexit = False


def _once(make: Callable[[], _Handle]) -> Callable[[], _Handle]:
    """The result of `make` at its first call.

    Two devices begin at the same moment. `functools.cache` would forget one of two engines, and
    destroy it while its objects are in use.
    """
    lock = threading.Lock()
    made: list[_Handle] = []

    @functools.wraps(make)
    def get() -> _Handle:
        with lock:
            if not made:
                made.append(make())
        return made[0]

    return get


@_once
def _engine() -> _Handle:
    return _Handle("engine", "dnnl_engine_create", _CPU, c_size_t(0))


@_once
def _attributes() -> _Handle:
    handle = _Handle("primitive_attr", "dnnl_primitive_attr_create")
    _call("dnnl_primitive_attr_set_scratchpad_mode", handle.pointer, _USER_SCRATCHPAD)
    return handle


def _numbers(values: Sequence[int]) -> ctypes.Array:
    return (c_int64 * 12)(*values)


def _strided(shape: Sequence[int], strides: Sequence[int]) -> _Handle:
    """A memory descriptor."""
    return _Handle(
        "memory_desc", "dnnl_memory_desc_create_with_strides", len(shape), _numbers(shape),
        _FLOAT32, _numbers(strides),
    )  # fmt: skip


def _any_layout(shape: Sequence[int]) -> _Handle:
    """A memory descriptor whose layout oneDNN chooses."""
    return _Handle(
        "memory_desc", "dnnl_memory_desc_create_with_tag", len(shape), _numbers(shape), _FLOAT32,
        _ANY_FORMAT,
    )  # fmt: skip


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    rows, *spatial, channels = _contiguous((shape[0], *shape[2:], shape[1]))
    return (rows, channels, *spatial)


class _Primitive:
    """A primitive, whose calls may run side by side.

    Args:
      description: of the primitive, whose layouts it keeps.
      arguments: indices of its arrays.
    """

    def __init__(self, description: _Handle, arguments: Sequence[int]) -> None:
        self._description = description
        self._layouts = {i: _layout(description, i) for i in (*arguments, _SCRATCHPAD)}
        self._scratchpad_bytes = _size(self._layouts[_SCRATCHPAD])
        self._handle = _Handle("primitive", "dnnl_primitive_create", description.pointer)
        self._idle: list[_Execution] = []

    def run(self, addresses: dict[int, int]) -> None:
        scratchpad = torch.empty(self._scratchpad_bytes, dtype=torch.uint8, device="cpu")
        try:
            execution = self._idle.pop()
        except IndexError:
            execution = _Execution(self._layouts)
        execution.run(self._handle, {**addresses, _SCRATCHPAD: scratchpad.data_ptr()})
        self._idle.append(execution)


class _Execution:
    """The private objects of a running primitive: a stream, and memory objects for its arrays.

    It can't be a thread's own: one of XLA's is a new thread to Python at each call.
    """

    def __init__(self, layouts: dict[int, c_void_p]) -> None:
        self._stream = _Handle("stream", "dnnl_stream_create", _engine().pointer, 1)
        self._memories = {
            index: _Handle(
                "memory", "dnnl_memory_create", layout, _engine().pointer, _NO_MEMORY_YET
            )
            for index, layout in layouts.items()
        }
        self._arguments = (_Argument * len(layouts))(
            *(_Argument(index, memory.pointer) for index, memory in self._memories.items())
        )

    def run(self, primitive: _Handle, addresses: dict[int, int]) -> None:
        for index, address in addresses.items():
            memory = self._memories[index].pointer
            _call("dnnl_memory_set_data_handle", memory, c_void_p(address))
        _call(
            "dnnl_primitive_execute", primitive.pointer, self._stream.pointer,
            len(self._arguments), self._arguments,
        )  # fmt: skip


def _layout(description: _Handle, argument: int) -> c_void_p:
    """The memory descriptor of a primitive's argument, which lives as long as the description."""
    query = _library().dnnl_primitive_desc_query_md
    return c_void_p(query(description.pointer, _ARGUMENT_MD, argument))


def _size(layout: c_void_p) -> int:
    return _library().dnnl_memory_desc_get_size(layout)


def _reorder(source: c_void_p, target: c_void_p) -> _Primitive | None:
    """From one layout to another; None where they are equal."""
    if _library().dnnl_memory_desc_equal(source, target):
        return None
    engine = _engine().pointer
    description = _Handle(
        "primitive_desc", "dnnl_reorder_primitive_desc_create", source, engine, target, engine,
        _attributes().pointer,
    )  # fmt: skip
    return _Primitive(description, (_SRC, _DST))


@dataclasses.dataclass(frozen=True)
class _Plan:
    """One convolution, and how its weights get into oneDNN's layout and back."""

    convolution: _Primitive
    indices: tuple[int, int, int]
    """Positions of the arguments x, w and y."""
    reorder: _Primitive | None
    packed_bytes: int
    """Size of the weights in oneDNN's layout."""

    def run(
        self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        weights = w.data_ptr()
        packed = torch.empty(
            self.packed_bytes if self.reorder else 0, dtype=torch.uint8, device="cpu"
        )
        in_layout = packed.data_ptr() if self.reorder else weights
        is_gradient = self.indices[1] == _DIFF_WEIGHTS
        if self.reorder and not is_gradient:
            self.reorder.run({_SRC: weights, _DST: in_layout})
        addresses = dict(zip(self.indices, (x.data_ptr(), in_layout, y.data_ptr()), strict=True))
        if bias is not None:
            addresses[_BIAS] = bias.data_ptr()
        self.convolution.run(addresses)
        if self.reorder and is_gradient:
            self.reorder.run({_SRC: in_layout, _DST: weights})


@functools.lru_cache(4096)
def _plan(
    role: Role,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    y_shape: tuple[int, ...],
    has_bias: bool,
    geometry: Geometry,
    threads: int,
) -> _Plan | None:
    """None where oneDNN has no kernel. A primitive is made for a number of threads."""
    groups = geometry.groups
    by_group = (groups, w_shape[0] // groups, *w_shape[1:]) if groups > 1 else w_shape
    x, y = (_strided(shape, _channels_last(shape)) for shape in (x_shape, y_shape))
    w, w_any = _strided(by_group, _contiguous(by_group)), _any_layout(by_group)
    bias = _strided((w_shape[0],), (1,)) if has_bias else None
    sizes = (
        _numbers(geometry.stride), _numbers([d - 1 for d in geometry.dilation]),
        _numbers(geometry.padding), _numbers(geometry.padding),
    )  # fmt: skip
    attributes = _attributes().pointer
    layouts = [x.pointer, w_any.pointer, bias.pointer if bias else None, y.pointer]
    name = "dnnl_convolution_{}_primitive_desc_create".format
    try:
        description = forward = _Handle(
            "primitive_desc", name("forward"), _engine().pointer, _FORWARD_TRAINING, _DIRECT,
            *layouts, *sizes, attributes,
        )  # fmt: skip
        if role == "input":
            description = _Handle(
                "primitive_desc", name("backward_data"), _engine().pointer, _DIRECT, x.pointer,
                w_any.pointer, y.pointer, *sizes, forward.pointer, attributes,
            )  # fmt: skip
        elif role == "weight":
            description = _Handle(
                "primitive_desc", name("backward_weights"), _engine().pointer, _DIRECT, *layouts,
                *sizes, forward.pointer, attributes,
            )  # fmt: skip
        indices = {
            "out": (_SRC, _WEIGHTS, _DST),
            "input": (_DIFF_SRC, _WEIGHTS, _DIFF_DST),
            "weight": (_SRC, _DIFF_WEIGHTS, _DIFF_DST),
        }[role]
        packed = _layout(description, indices[1])
        order = (packed, w.pointer) if role == "weight" else (w.pointer, packed)
        return _Plan(
            _Primitive(description, (*indices, _BIAS) if has_bias else indices),
            indices,
            _reorder(*order),
            _size(packed),
        )
    except _Failed:
        return None
