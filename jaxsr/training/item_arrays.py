"""Conversion of an item's parts to arrays that devices take: float32, int32, int8, uint8, bool."""

from typing import Any

import numpy as np
import torch

from jaxsr.errors import InputError

_INT32 = np.iinfo(np.int32)


def to_array(value: Any, where: str) -> np.ndarray:
    """Converts a tensor, array, number, list of numbers or image to an array that devices take.

    Images become uint8 (channels, height, width). Floats become float32; integers stay uint8 or
    int8, or become int32.

    Args:
      value: value to convert.
      where: description of the value, for errors.

    Raises:
      InputError: it is not an array of numbers, contains NaN, or has numbers that 32 bits do not
        hold.
    """
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise InputError(f"{where} is a {value.layout} tensor; make it dense: .to_dense()")
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    elif hasattr(value, "getbands"):  # an image of Pillow's
        value = np.asarray(value)
        value = value[None] if value.ndim == 2 else np.moveaxis(value, -1, 0)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        kind = type(value).__name__ if array.dtype == object else array.dtype
        raise InputError(
            f"{where} is {kind}, not numbers; leave it out of the items, or turn it into an array"
        )
    if array.dtype.kind not in "biu":
        with np.errstate(over="ignore"):
            single = array.astype(np.float32, copy=False)
        if np.isnan(single).any():
            raise InputError(f"{where} holds NaN; clean the data, or replace it in the dataset")
        if array.dtype.itemsize > 4 and np.isinf(single).sum() > np.isinf(array).sum():
            raise InputError(
                f"{where} holds numbers beyond 3.4e38, the largest of float32; scale them in the "
                "dataset"
            )
        return single
    if array.dtype in (np.bool_, np.uint8, np.int8, np.int32):
        return array
    if array.size and not (_INT32.min <= array.min() and array.max() <= _INT32.max):
        raise InputError(f"{where} holds integers beyond 32 bits, which devices do not take")
    return array.astype(np.int32)
