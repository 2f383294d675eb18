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
_compiled = contextvars.ContextVar("compiled", default=False)


@contextlib.contextmanager
def xla_only(*, compiled: bool = False) -> Generator[None]:
    """Programs lowered inside call no kernels of other libraries: those that are to be stored.

    Args:
      compiled: they may call those that were registered by `register_function`.
    """
    tokens = _xla_only.set(True), _compiled.set(compiled)
    try:
        yield
    finally:
        _xla_only.reset(tokens[0])
        _compiled.reset(tokens[1])


def calls_compiled() -> bool:
    """Whether programs lowered for CPUs call kernels that were compiled for this processor."""
    return _compiled.get()


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
    are valid during the call alone. Its exceptions become XLA errors of one line.
    """

    def register(function: Kernel) -> str:
        handler = _HANDLER(functools.partial(_handle, name, function))
        _handlers.append(handler)
        pycapsule: Any = getattr(jax.ffi, "pycapsule")  # noqa: B009  # JAX gives it no types
        capsule = pycapsule(ctypes.cast(handler, c_void_p).value)
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")
        return name

    return register


def register_function(name: str, address: int) -> None:
    """Registers compiled code, which reads XLA's call frame itself, as the custom call `name`."""
    pycapsule: Any = getattr(jax.ffi, "pycapsule")  # noqa: B009  # JAX gives it no types
    jax.ffi.register_ffi_target(name, pycapsule(address), platform="cpu")


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
    _keep_interrupts_outside()
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


# ---- xla/ffi/api/c_api.h. Its structures are read as lists of words: ctypes takes 1 µs a field.


class _ApiVersion(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int32), ("minor", c_int32)]


class _Metadata(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("version", _ApiVersion),
        ("traits", c_uint32),
        ("state", c_int64),
    ]


class _MetadataExtension(Structure):
    _fields_ = [
        ("size", c_size_t), ("type", c_int32), ("next", c_void_p), ("metadata", POINTER(_Metadata)),
    ]  # fmt: skip


class _ErrorArguments(Structure):
    _fields_ = [
        ("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int32),
    ]  # fmt: skip


_FRAME = c_int64 * 22
"""XLA_FFI_CallFrame: size, extension, API, context, stage; arguments and results, each size,
extension, count, types and places; attributes, which have names before their places; a future."""
_API, _INPUTS, _OUTPUTS, _ATTRIBUTES = 2, 7, 12, 20
"""Words of the frame: a pointer, where counts stand, and the places of the attributes."""
_BUFFER = c_int64 * 6
"""XLA_FFI_Buffer: size, extension, dtype, data, rank and extents."""
_TEXT = c_int64 * 2
"""XLA_FFI_ByteSpan: begin and length."""
INPUT_COUNT_WORD = _INPUTS
INPUT_PLACES_WORD, OUTPUT_PLACES_WORD = _INPUTS + 2, _OUTPUTS + 2
BUFFER_DATA_WORD, BUFFER_EXTENTS_WORD = 3, 5
FIRST_FUNCTION_WORD = 6
"""Word of XLA_FFI_Api: after size, extension, version (3 words) and internal API."""
_CREATE_ERROR_WORD = FIRST_FUNCTION_WORD

_HANDLER = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_CREATE_ERROR = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))
_handlers: list[Any] = []
"""C functions that XLA may still call; ctypes frees one when Python forgets it."""


def _handle(name: str, function: Kernel, place: int) -> int | None:
    """XLA's call; None means success."""
    inputs: list[np.ndarray] = []
    try:
        try:
            _run(function, place, inputs)
        except KeyboardInterrupt as interrupt:  # it came just before the kernel, or after it
            vars(interrupt)["handled"] = True  # `runtime.interrupts` would also send it again
            _send_again(signal.SIGINT)
            _run(function, place, inputs)
    except BaseException as error:  # an exception must not leave a C function
        return _error(_FRAME.from_address(place)[_API], name, inputs, error)
    return None


def is_put_off(number: int, frame: types.FrameType | None) -> bool:
    """Whether a signal's handler is called where a kernel's call begins, and is sent again later.

    Python sees a signal that came while XLA computed at that place, before any `try`. ctypes would
    drop the handler's exception, and XLA would read old memory in the place of the result.
    """
    if frame is None or frame.f_code is not _handle.__code__:
        return False
    _send_again(number)
    return True


def _interrupt_outside(number: int, frame: types.FrameType | None) -> None:
    """Python's own handler of Ctrl-C, outside of kernels."""
    if not is_put_off(number, frame):
        signal.default_int_handler(number, frame)


def _keep_interrupts_outside() -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt_outside)


def _run(function: Kernel, place: int, inputs: list[np.ndarray]) -> None:
    """Calls the kernel; `inputs` are its arguments."""
    frame = _FRAME.from_address(place)[:]
    if frame[1] and _answered_version(frame[1]):
        return
    begin, length = _TEXT.from_address(c_int64.from_address(frame[_ATTRIBUTES]).value)[:]
    attributes = _parsed(ctypes.string_at(begin, length))
    last = attributes["channels_last"]
    count = frame[_INPUTS]
    inputs[:] = _arrays(count, frame[_INPUTS + 2], last)
    outputs = _arrays(frame[_OUTPUTS], frame[_OUTPUTS + 2], last[count:])
    if threading.get_ident() == threading.main_thread().ident:
        _run_before_signals(function, inputs, outputs, attributes)
    else:
        function(inputs, outputs, attributes)


def _run_before_signals(
    function: Kernel, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> None:
    """While a kernel runs in the main thread, signals wait for it, as for any program of XLA's.

    An exception of their handlers would be lost on its way through XLA's functions. Who watches for
    signals by `signal.set_wakeup_fd` sees each of them once, when it is sent again.
    """
    handlers = [
        (number, handler) for number in _DEFERRED if callable(handler := _signals.getsignal(number))
    ]
    received: list[int] = []

    def receive(number: int, _: object) -> None:
        received.append(number)

    wakeup_fd = signal.set_wakeup_fd(-1)
    try:
        try:
            for number, _ in handlers:
                _signals.signal(number, receive)
            function(inputs, outputs, attributes)
        finally:
            for number, handler in handlers:
                _signals.signal(number, handler)
    finally:
        signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        for number in received:
            _send_later(number)


_DEFERRED = [
    int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_signals: Any = importlib.import_module("_signal")
"""Python's functions in C. Python's wrappers would make enumerations of them, at 10 µs a kernel."""


repeated: list[int] = []
"""Signals sent again of which a watcher by `signal.set_wakeup_fd` saw the first one, too."""


def _send_again(number: int) -> None:
    repeated.append(number)
    _send_later(number)


def _send_later(number: int) -> None:
    """A signal once more, when the main thread has left the kernel."""
    main: Any = threading.main_thread().ident
    threading.Timer(0.05, signal.pthread_kill, (main, number)).start()


def _answered_version(extension: int | None) -> bool:
    """When a target is registered, XLA asks for the version of the interface alone."""
    while extension:
        header = _MetadataExtension.from_address(extension)
        if header.type == _METADATA_EXTENSION:
            header.metadata.contents.version.major, header.metadata.contents.version.minor = 0, 3
            return True
        extension = header.next
    return False


def _arrays(count: int, places: int, channels_last: Sequence[int]) -> list[np.ndarray]:
    arrays: list[np.ndarray] = []
    for i, place in enumerate((c_int64 * count).from_address(places)[:] if count else ()):
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
    """Attributes from a call's one text: XLA passes each by its own pointers, at 5 µs."""
    values = json.loads(attributes)
    return types.MappingProxyType({name: tuple(integers) for name, integers in values.items()})


def _error(api: int, name: str, inputs: list[np.ndarray], error: BaseException) -> int:
    code = _INTERNAL
    if isinstance(error, KeyboardInterrupt):
        code = _CANCELLED
    elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        code = _RESOURCE_EXHAUSTED
    shapes = " and ".join(f"{array.dtype}{list(array.shape)}" for array in inputs)
    reason = (str(error).splitlines() or [""])[0]
    message = f"{name} of {shapes}: {type(error).__name__}: {reason}; use {SWITCH}=xla"
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), code)
    create_error: Any = _CREATE_ERROR(c_int64.from_address(api + 8 * _CREATE_ERROR_WORD).value)
    return create_error(ctypes.byref(arguments))
