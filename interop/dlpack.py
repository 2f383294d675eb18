"""torch tensors and JAX arrays in the same memory, on CPUs and GPUs, by DLPack.

    images = array_of(tensor)          # a CUDA tensor of a data loader, for a jitted function
    tensor = tensor_of(outputs)

Both frameworks then share a GPU: see `jaxsr.runtime.setup.share_gpu_memory`. Neither may write into
memory that the other still uses.
"""

import jax
import torch

from jaxsr.interop.errors import InputError, InputTypeError

_WIDE = {torch.int64: "int64", torch.float64: "float64", torch.complex128: "complex128"}


def array_of(tensor: torch.Tensor) -> jax.Array:
    """The tensor as a JAX array in the same memory.

    Args:
      tensor: on the CPU or a CUDA device, of any shape, without gradients. Axes may be in any order
        in memory, as with channels last.

    Raises:
      InputTypeError: it is not a tensor.
      InputError: it has gaps in memory, needs a gradient, or has 64 bits and JAX has only 32.

    >>> import torch
    >>> array_of(torch.arange(3.0)) + 1
    Array([1., 2., 3.], dtype=float32)
    """
    if not isinstance(tensor, torch.Tensor):
        raise InputTypeError(f"array_of takes a torch.Tensor, got {type(tensor).__name__}")
    if tensor.requires_grad:
        raise InputError(
            "the tensor requires a gradient, which JAX would not compute; give tensor.detach()"
        )
    if tensor.dtype in _WIDE and not jax.config.values["jax_enable_x64"]:
        kind = _WIDE[tensor.dtype]
        raise InputError(
            f"JAX computes in 32 bits, and would copy a tensor of {kind}; give tensor.to of a "
            "32-bit dtype, or set jax_enable_x64"
        )
    if tensor.numel() and not _is_dense(tensor):
        raise InputError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} has gaps in "
            "memory, which JAX arrays have not; give tensor.contiguous(), a copy"
        )
    return jax.dlpack.from_dlpack(tensor.resolve_conj().resolve_neg())


def tensor_of(array: jax.Array) -> torch.Tensor:
    """The array as a torch tensor in the same memory; it must not be written into.

    Args:
      array: on one device, a CPU or a CUDA device.

    Raises:
      InputTypeError: it is not a JAX array, or one of random keys.
      InputError: it lies on several devices, or on one that torch has not.

    >>> import jax.numpy as jnp
    >>> tensor_of(jnp.arange(3.0))
    tensor([0., 1., 2.])
    """
    is_array = isinstance(array, jax.Array)
    if not is_array or jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        kind = array.dtype if is_array else type(array).__name__
        raise InputTypeError(f"tensor_of takes a JAX array of numbers, got {kind}")
    devices = array.devices()
    if len(devices) > 1:
        raise InputError(
            f"the array lies on {len(devices)} devices and a tensor on one; give one of its "
            "addressable_shards, or jax.device_put it on one device"
        )
    (device,) = devices
    if device.platform not in ("cpu", "gpu", "cuda"):
        raise InputError(
            f"the array is on a {device.platform}, where torch has no tensors; give "
            "jax.device_get(array)"
        )
    return torch.from_dlpack(array)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether it fills its memory, its axes in some order."""
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != size:
            return False
        size *= length
    return True
