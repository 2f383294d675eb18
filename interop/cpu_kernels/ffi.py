"""Python functions of torch tensors as XLA custom calls on CPUs.

    @kernel("jaxsr_relu")
    def relu(inputs, outputs, attributes):
        torch.clamp(inputs[0], min=0, out=outputs[0])

    call(relu, [jax.ShapeDtypeStruct(x.shape, x.dtype)], x)    # inside a program for CPUs

XLA passes a call frame (`xla/ffi/api/c_api.h`, which jaxlib ships): pointers to the buffers, and the
attributes of the call. `ctypes` reads it, and torch sees the buffers as tensors without a copy. A
call costs about 20 µs of Python.
"""

import ctypes
import functools
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, Structure, c_char, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import jax
import numpy as np
import torch

from jaxsr.interop.errors import InputError

SWITCH = "JAXSR_CPU_KERNELS"
"""Environment variable: `torch` (default), or `xla` for programs without torch's kernels."""

Attributes = Mapping[str, Sequence[int]]
Kernel = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], Attributes], None]

_DTYPES = {
    1: torch.bool, 2: torch.int8, 4: torch.int32, 5: torch.int64, 6: torch.uint8, 10: torch.float16,
    11: torch.float32, 12: torch.float64, 16: torch.bfloat16,
}  # fmt: skip
"""torch's dtype for each `XLA_FFI_DataType` that kernels may take."""
_RESOURCE_EXHAUSTED, _INTERNAL, _CANCELLED = 8, 13, 1
_METADATA_EXTENSION = 1
_EXECUTE = 3


def enabled() -> bool:
    """Whether programs lowered for CPUs call torch's kernels.

    Raises:
      InputError: the environment variable has another value than `torch` or `xla`.
    """
    value = os.environ.get(SWITCH, "torch")
    if value not in ("torch", "xla"):
        raise InputError(f"{SWITCH}={value!r}: must be 'torch' or 'xla'; unset it for 'torch'")
    return value == "torch"


def threads_per_call() -> int:
    """Threads of one call: torch's own number, shared out among the simulated devices."""
    return max(1, torch.get_num_threads() // jax.local_device_count("cpu"))


def kernel(name: str) -> Callable[[Kernel], str]:
    """Registers a function as XLA's custom call `name`; gives the name to pass to `call`.

    The function takes inputs and outputs, tensors of the logical shapes in row-major order, and the
    attributes of the call. It writes its results into the outputs. What it raises becomes an XLA
    error of one line.
    """

    def register(function: Kernel) -> str:
        handler = _HANDLER(functools.partial(_handle, name, function))
        _handlers.append(handler)
        capsule = jax.ffi.pycapsule(ctypes.cast(handler, c_void_p).value)
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")
        return name

    return register


def call(
    name: str,
    result: jax.ShapeDtypeStruct,
    *operands: jax.Array,
    channels_last: Sequence[bool],
    **attributes: Sequence[int],
) -> jax.Array:
    """The custom call, for use where a program is lowered for CPUs.

    Args:
      name: of a registered kernel.
      result: shape and dtype of the result.
      *operands: of the kernel.
      channels_last: for each operand and the result, whether axis 1 is the last in memory; the
        kernel gets the tensor in the logical order of axes all the same.
      **attributes: integers. All that the kernel depends on, so that a compiled program can be
        kept and used by another process.
    """
    layouts = [_layout(len(a.shape), last) for a, last in zip((*operands, result), channels_last)]
    values = {key: np.array(value, np.int64) for key, value in attributes.items()}
    values["channels_last"] = np.array(channels_last, np.int64)
    values["threads"] = np.array([threads_per_call()], np.int64)
    return jax.ffi.ffi_call(
        name, result, input_layouts=layouts[:-1], output_layouts=layouts[-1]
    )(*operands, **values)


def _layout(rank: int, channels_last: bool) -> tuple[int, ...]:
    """Axes from the slowest to the fastest in memory."""
    return (0, *range(2, rank), 1) if channels_last and rank > 2 else tuple(range(rank))


# ---- xla/ffi/api/c_api.h


class _Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int32), ("next", c_void_p)]


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int32), ("minor", c_int32)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", c_uint32), ("state", c_int64)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Buffer(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("dtype", c_int32), ("data", c_void_p),
        ("rank", c_int64), ("dims", POINTER(c_int64)),
    ]  # fmt: skip


class _Buffers(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("count", c_int64), ("types", c_void_p),
        ("items", POINTER(POINTER(_Buffer))),
    ]  # fmt: skip


class _Name(Structure):
    _fields_ = [("text", c_void_p), ("length", c_size_t)]


class _Integers(Structure):
    _fields_ = [("dtype", c_int32), ("count", c_size_t), ("data", c_void_p)]


class _Attributes(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("count", c_int64), ("types", c_void_p),
        ("names", POINTER(POINTER(_Name))), ("items", POINTER(POINTER(_Integers))),
    ]  # fmt: skip


class _Api(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("version", _Version), ("internal", c_void_p),
        ("create_error", c_void_p),
    ]  # fmt: skip


class _CallFrame(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("api", POINTER(_Api)), ("context", c_void_p),
        ("stage", c_int32), ("inputs", _Buffers), ("outputs", _Buffers),
        ("attributes", _Attributes), ("future", c_void_p),
    ]  # fmt: skip


class _ErrorArguments(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int32),
    ]  # fmt: skip


_HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(_CallFrame))
_CREATE_ERROR = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))
_handlers: list[Any] = []
"""C functions that XLA may still call; ctypes frees one when Python forgets it."""


def _handle(name: str, function: Kernel, pointer: Any) -> int | None:
    """XLA's call; None means success."""
    frame = pointer.contents
    if frame.extension and _answered_version(frame.extension):
        return None
    inputs: list[torch.Tensor] = []
    try:
        attributes = _attributes(frame.attributes)
        last = attributes["channels_last"]
        n = frame.inputs.count
        inputs = [_tensor(frame.inputs.items[i], last[i]) for i in range(n)]
        outputs = [_tensor(frame.outputs.items[i], last[n + i]) for i in range(frame.outputs.count)]
        (threads,) = attributes["threads"]
        if torch.get_num_threads() != threads:
            # OpenMP's count belongs to the calling thread, and XLA calls from its own.
            torch.set_num_threads(threads)
        with torch.no_grad():
            function(inputs, outputs, attributes)
    except BaseException as error:  # an exception must not leave a C function
        return _error(frame, name, inputs, error)
    return None


def _answered_version(extension: int) -> bool:
    """When a target is registered, XLA asks for the version of the interface alone."""
    while extension:
        base = ctypes.cast(extension, POINTER(_Extension)).contents
        if base.type == _METADATA_EXTENSION:
            metadata = ctypes.cast(extension, POINTER(_MetadataExtension)).contents.metadata
            metadata.contents.version.major, metadata.contents.version.minor = 0, 3
            return True
        extension = base.next
    return False


def _tensor(pointer: Any, channels_last: int) -> torch.Tensor:
    buffer = pointer.contents
    shape = buffer.dims[: buffer.rank]
    dtype = _DTYPES[buffer.dtype]
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    in_memory = [shape[i] for i in _layout(buffer.rank, bool(channels_last))]
    memory = (c_char * (math.prod(shape) * dtype.itemsize)).from_address(buffer.data)
    tensor = torch.frombuffer(memory, dtype=dtype).view(in_memory)
    return tensor.movedim(-1, 1) if channels_last and buffer.rank > 2 else tensor


def _attributes(attributes: _Attributes) -> dict[str, list[int]]:
    values = {}
    for i in range(attributes.count):
        name = attributes.names[i].contents
        integers = attributes.items[i].contents
        array = (c_int64 * integers.count).from_address(integers.data) if integers.count else ()
        values[ctypes.string_at(name.text, name.length).decode()] = list(array)
    return values


def _error(frame: Any, name: str, inputs: list[torch.Tensor], error: BaseException) -> int:
    code = _INTERNAL
    if isinstance(error, KeyboardInterrupt):
        # Python drops what leaves a C function: it is raised again when XLA has returned.
        signal.raise_signal(signal.SIGINT)
        code = _CANCELLED
    elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        code = _RESOURCE_EXHAUSTED
    shapes = " and ".join(f"{str(t.dtype)[6:]}{list(t.shape)}" for t in inputs)
    reason = (str(error).splitlines() or [""])[0]
    message = f"{name} of {shapes}: {type(error).__name__}: {reason}; {SWITCH}=xla does without"
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), code)
    return _CREATE_ERROR(frame.api.contents.create_error)(ctypes.byref(arguments))
