"""Python functions of NumPy arrays as XLA custom calls in programs for CPUs.

    @kernel("jaxsr_reversed")
    def reversed_rows(inputs, outputs, attributes):
        outputs[0][...] = inputs[0][::-1]

    call(reversed_rows, jax.ShapeDtypeStruct(x.shape, x.dtype), x)    # inside a program for CPUs

So a program calls kernels of other libraries (torch, OpenCV) without a copy of its arrays and
without a compiler on the user's machine. XLA passes a call frame (`xla/ffi/api/c_api.h`, which
jaxlib ships): pointers to the buffers and the attributes of the call. A call costs about 20 µs.
"""

import contextlib
import contextvars
import ctypes
import functools
import importlib
import json
import math
import os
import signal
import threading
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import jax
import ml_dtypes
import numpy as np

SWITCH = "JAXSR_CPU_KERNELS"
"""Environment variable: `native` (default), `torch` for torch's calls of oneDNN alone, or `xla` for
programs of XLA's kernels alone."""

Arrays = Sequence[np.ndarray]
Attributes = Mapping[str, Sequence[int]]
Kernel = Callable[[Arrays, Arrays, Attributes], None]

_DTYPES = {
    number: np.dtype(dtype)
    for number, dtype in {
        1: np.bool_, 2: np.int8, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16,
        10: np.float16, 11: np.float32, 12: np.float64, 16: ml_dtypes.bfloat16,
    }.items()
}  # fmt: skip
"""The dtype for each `XLA_FFI_DataType` that kernels may take."""
_RESOURCE_EXHAUSTED, _INTERNAL, _CANCELLED = 8, 13, 1
_METADATA_EXTENSION = 1


_xla_only = contextvars.ContextVar("xla_only", default=False)


@contextlib.contextmanager
def xla_only() -> Generator[None]:
    """Programs lowered inside call no kernels of other libraries: those that are to be stored."""
    token = _xla_only.set(True)
    try:
        yield
    finally:
        _xla_only.reset(token)


def enabled() -> bool:
    """Whether programs lowered for CPUs call kernels of other libraries.

    Raises:
      ValueError: the environment variable has another value than `native`, `torch` or `xla`.
    """
    return _switch() != "xla" and not _xla_only.get()


def is_native() -> bool:
    """Whether kernels may do without torch's: call oneDNN itself, or multiply patches."""
    return _switch() == "native"


def _switch() -> str:
    value = os.environ.get(SWITCH, "native")
    if value not in ("native", "torch", "xla"):
        raise ValueError(
            f"{SWITCH}={value!r}: must be 'native', 'torch' or 'xla'; unset it for 'native'"
        )
    return value


def kernel(name: str) -> Callable[[Kernel], str]:
    """Registers a function as XLA's custom call `name`; gives the name to pass to `call`.

    The function takes inputs, outputs and attributes, and writes its results into the outputs. They
    are valid during the call alone. What it raises becomes an XLA error of one line.
    """

    def register(function: Kernel) -> str:
        handler = _HANDLER(functools.partial(_handle, name, function))
        _handlers.append(handler)
        pycapsule: Any = getattr(jax.ffi, "pycapsule")  # noqa: B009  # JAX gives it no types
        capsule = pycapsule(ctypes.cast(handler, c_void_p).value)
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")
        return name

    return register


def call(
    name: str,
    results: jax.ShapeDtypeStruct | list[jax.ShapeDtypeStruct],
    *operands: jax.Array,
    channels_last: Sequence[bool] | None = None,
    in_place: bool = False,
    **options: Sequence[int],
) -> Any:
    """The custom call, for use where a program is lowered for CPUs.

    Args:
      name: of a registered kernel.
      results: shape and dtype of the result; or a list, for a list of results.
      *operands: of the kernel.
      channels_last: for each operand and result, whether axis 1 is the last one in memory. The
        order of the array's axes stays. Default: none of them.
      in_place: whether the result takes the first operand's memory, and begins with its values.
        XLA copies it before, where it is read later.
      **options: all integers that the kernel depends on, so that a compiled program can be
        kept and used by another process.
    """
    shapes = [array.shape for array in (*operands, *jax.tree.leaves(results))]
    last = [False] * len(shapes) if channels_last is None else channels_last
    layouts = [_layout(len(shape), flag) for shape, flag in zip(shapes, last, strict=True)]
    of_results = layouts[len(operands) :]
    function = jax.ffi.ffi_call(
        name,
        results,
        input_layouts=layouts[: len(operands)],
        output_layouts=of_results if isinstance(results, list) else of_results[0],
        input_output_aliases={0: 0} if in_place else None,
    )
    attributes = json.dumps({**options, "channels_last": list(last)}, default=int)
    return function(*operands, attributes=attributes)


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


_BUFFER = c_int64 * 6
"""XLA_FFI_Buffer: size, extension, dtype, data, rank and extents, at 8 bytes each."""


class _Buffers(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("count", c_int64), ("types", c_void_p),
        ("items", c_void_p),
    ]  # fmt: skip


class _Text(Structure):
    _fields_ = [("begin", c_void_p), ("length", c_size_t)]


class _Attributes(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("count", c_int64), ("types", c_void_p),
        ("names", c_void_p), ("items", POINTER(POINTER(_Text))),
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
    inputs: list[np.ndarray] = []

    def run() -> None:
        text = frame.attributes.items[0].contents
        attributes = _parsed(ctypes.string_at(text.begin, text.length))
        last = attributes["channels_last"]
        inputs[:] = _arrays(frame.inputs, last)
        outputs = _arrays(frame.outputs, last[len(inputs) :])
        with _interrupts_deferred():
            function(inputs, outputs, attributes)

    try:
        try:
            run()
        except KeyboardInterrupt:  # it came just before the kernel, or after it
            _send_later(signal.SIGINT)
            run()
    except BaseException as error:  # an exception must not leave a C function
        return _error(frame, name, inputs, error)
    return None


@contextlib.contextmanager
def _interrupts_deferred() -> Generator[None]:
    """While a kernel runs in the main thread, signals wait for it, as for any program of XLA's.

    An exception of their handlers would be lost on its way through XLA's functions. Who watches for
    signals by `signal.set_wakeup_fd` sees each of them once, when it is sent again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    handlers = {number: _signals.getsignal(number) for number in _DEFERRED}
    received: list[int] = []

    def receive(number: int, _: types.FrameType | None) -> None:
        received.append(number)

    wakeup_fd = signal.set_wakeup_fd(-1)
    try:
        try:
            for number, handler in handlers.items():
                if callable(handler):
                    _signals.signal(number, receive)
            yield
        finally:
            for number, handler in handlers.items():
                if callable(handler):
                    _signals.signal(number, handler)
    finally:
        signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        for number in received:
            _send_later(number)


_DEFERRED = [
    int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_signals: Any = importlib.import_module("_signal")
"""Python's functions in C. What Python wraps around them makes enumerations, at 10 µs a kernel."""


def _send_later(number: int) -> None:
    """A signal once more, when the main thread has left the kernel."""
    main: Any = threading.main_thread().ident
    threading.Timer(0.05, signal.pthread_kill, (main, number)).start()


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


def _arrays(buffers: Any, channels_last: Sequence[int]) -> list[np.ndarray]:
    """As lists of whole numbers: a structure's fields, one by one, take ctypes 2 µs an array."""
    count: int = buffers.count
    if not count:
        return []
    arrays: list[np.ndarray] = []
    for i, place in enumerate((c_int64 * count).from_address(buffers.items)[:]):
        _, _, dtype, data, rank, extents = _BUFFER.from_address(place)[:]
        shape = tuple((c_int64 * rank).from_address(extents)[:]) if rank else ()
        arrays.append(_view(data, dtype & 0xFF, shape, channels_last[i]))
    return arrays


@functools.lru_cache(8192)
def _view(data: int, number: int, shape: tuple[int, ...], channels_last: int) -> np.ndarray:
    """An array over XLA's memory, which programs use again at the same place."""
    dtype = _DTYPES[number]
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    layout = _layout(len(shape), bool(channels_last))
    memory: Any = (ctypes.c_char * size).from_address(data)
    array: np.ndarray = np.frombuffer(memory, dtype).reshape([shape[axis] for axis in layout])
    return np.moveaxis(array, range(len(shape)), layout)


@functools.lru_cache(8192)
def _parsed(attributes: bytes) -> Attributes:
    """Of a call's one attribute, a text: XLA passes each by its own pointers, at 5 µs."""
    values = json.loads(attributes)
    return types.MappingProxyType({name: tuple(integers) for name, integers in values.items()})


def _error(frame: Any, name: str, inputs: list[np.ndarray], error: BaseException) -> int:
    code = _INTERNAL
    if isinstance(error, KeyboardInterrupt):
        code = _CANCELLED
    elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        code = _RESOURCE_EXHAUSTED
    shapes = " and ".join(f"{array.dtype}{list(array.shape)}" for array in inputs)
    reason = (str(error).splitlines() or [""])[0]
    message = f"{name} of {shapes}: {type(error).__name__}: {reason}; use {SWITCH}=xla"
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), code)
    create_error: Any = _CREATE_ERROR(frame.api.contents.create_error)
    return create_error(ctypes.byref(arguments))
