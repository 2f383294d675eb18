"""Functions of torch tensors as XLA custom calls in programs for CPUs."""

import functools
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch

from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.xla_calls import calls as cpu_calls
from jaxsr.xla_calls.calls import Arrays, Attributes
from jaxsr.xla_calls.rows import RowsCall

TorchKernel = Callable[[list[torch.Tensor], list[torch.Tensor], Attributes], None]


def torch_kernel(name: str) -> Callable[[TorchKernel], str]:
    """As `cpu_calls.kernel`, of a function of tensors."""

    def register(function: TorchKernel) -> str:
        def of_arrays(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
            (threads,) = attributes["threads"]
            before = torch.get_num_threads()
            if before != threads:
                # OpenMP's count belongs to the calling thread, and XLA calls from its own.
                torch.set_num_threads(threads)
            try:
                # Operation by operation, a kernel runs in the middle of a trace.
                with _turns(threads), plain_torch(), torch.no_grad():
                    tensors, results = [_tensor(a) for a in inputs], [_tensor(a) for a in outputs]
                    function(tensors, results, attributes)
            finally:
                if before != threads and threading.current_thread() is threading.main_thread():
                    torch.set_num_threads(before)  # the caller's own

        return cpu_calls.kernel(name)(of_arrays)

    return register


def torch_call(
    kernel: str,
    *operands: jax.Array,
    options: tuple[tuple[str, tuple[int, ...]], ...] = (),
    **fields: Any,
) -> Any:
    """A `RowsCall` of a torch kernel, which computes with this device's share of the threads."""
    options = (*options, ("threads", (threads_per_call(),)))
    return RowsCall(kernel=kernel, options=options, **fields)(*operands)


def float_bits(number: float) -> tuple[int]:
    """A float64 as an option of a call, which holds whole numbers alone."""
    return struct.unpack("q", struct.pack("d", number))


def float_of(bits: Sequence[int]) -> float:
    """The number of `float_bits`."""
    return struct.unpack("d", struct.pack("q", *bits))[0]


@functools.cache
def _turns(threads: int) -> threading.Semaphore:
    """As many calls at a time as there are threads for. XLA runs independent operations side by
    side: calls that share the cores take each other's caches, and wait for each other's threads."""
    return threading.Semaphore(max(1, TORCH_THREADS // threads))


def threads_per_call() -> int:
    """Threads of one call: torch's own number, shared out among the simulated devices."""
    return max(1, TORCH_THREADS // jax.local_device_count("cpu"))


TORCH_THREADS = torch.get_num_threads()
"""The process's threads before any kernel has set its own."""


def _tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
