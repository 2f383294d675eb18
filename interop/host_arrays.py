# pyright: reportUnknownMemberType=false
"""torch tensors as NumPy arrays and back, bfloat16 and float8 included.

NumPy has these dtypes through ml_dtypes only, and torch does not convert them: the bits are viewed
as integers on the way. Needs torch and NumPy, not JAX.
"""

from typing import Any

import ml_dtypes
import numpy as np
import torch

_FLOAT8 = [f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")]
_BITS: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    **{getattr(torch, name): (torch.uint8, getattr(ml_dtypes, name)) for name in _FLOAT8},
}
_FROM_NUMPY = {np.dtype(kind): (bits, dtype) for dtype, (bits, kind) in _BITS.items()}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's values on the host, in its dtype; may share its memory."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in _BITS:
        bits, dtype = _BITS[tensor.dtype]
        return tensor.contiguous().view(bits).numpy().view(dtype)
    return tensor.resolve_conj().resolve_neg().numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The array as a CPU tensor; shares its memory unless that is read-only."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype in _FROM_NUMPY:
        bits, dtype = _FROM_NUMPY[array.dtype]
        return torch.from_numpy(array.view(str(bits).removeprefix("torch."))).view(dtype)
    return torch.from_numpy(array)
