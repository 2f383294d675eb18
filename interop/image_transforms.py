"""Kernels and policies of `jaxsr.ops` as transforms of torch tensors, like torchvision's v2."""

from collections.abc import Mapping
from typing import Any, overload

import numpy as np
import torch

from jaxsr.interop.host_arrays import to_numpy, to_torch
from jaxsr.ops.records import FIELDS, Transform, transform_record


class TensorTransform:
    """A callable of a tensor (C, H, W) or (N, C, H, W), or of a dictionary of tensors.

    Draws come from torch's generator, so that `torch.manual_seed` decides.

    Args:
      transform: a policy for `jaxsr.ops.augment`, or a kernel of NCHW arrays, as
        `partial(ops.resize, size=224, axes=(-2, -1))`.
      fields: names in dictionaries; see `jaxsr.ops.records.FIELDS`.
    """

    def __init__(self, transform: Transform, fields: Mapping[str, str] | None = None) -> None:
        self._transform, self._fields = transform, {**FIELDS, **(fields or {})}

    @overload
    def __call__(self, sample: torch.Tensor) -> torch.Tensor: ...

    @overload
    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]: ...

    def __call__(self, sample: torch.Tensor | Mapping[str, Any]) -> torch.Tensor | dict[str, Any]:
        """The changed tensor, or the dictionary with changed tensors, on the CPU."""
        image = self._fields["images"]
        record = {image: sample} if isinstance(sample, torch.Tensor) else sample
        tensors = {
            name: record[name]
            for name in self._fields.values()
            if isinstance(record.get(name), torch.Tensor)
        }
        arrays = {**record, **{name: to_numpy(tensor) for name, tensor in tensors.items()}}
        seed = int(torch.randint(1 << 32, ()))
        out = transform_record(arrays, self._transform, seed, self._fields, axes=(-2, -1))
        out |= {name: to_torch(np.array(out[name])) for name in tensors}
        return out[image] if isinstance(sample, torch.Tensor) else out
