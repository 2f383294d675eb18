"""`torch.view_copy`, `as_strided_copy` and the like: copies of the view of that name."""

from collections.abc import Callable
from typing import Any

import torch

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import decomposes
from jaxsr.interop._core.schema import schema_of


def _copy_of(view: torch._ops.OpOverload) -> Callable[..., Any]:
    def copied(*args: Any, **kwargs: Any) -> Any:
        shown = view(*args, **kwargs)
        if isinstance(shown, torch.Tensor):
            return shown.clone(memory_format=torch.contiguous_format)
        return [part.clone(memory_format=torch.contiguous_format) for part in shown]

    return copied


_VIEWS = (
    aten.alias, aten.as_strided, aten.detach, aten.diagonal, aten.expand, aten.narrow, aten.permute,
    aten.select, aten.slice, aten.split, aten.split_with_sizes, aten.squeeze, aten.t,
    aten.transpose, aten.unbind, aten.unfold, aten.unsqueeze, aten.view, aten.view_as_complex,
    aten.view_as_real,
)  # fmt: skip

for _packet in _VIEWS:
    _copies = getattr(aten, f"{_packet.__name__}_copy")
    for _name in {*_packet.overloads()} & {*_copies.overloads()}:
        if schema_of(getattr(_packet, _name)).is_view:
            decomposes(getattr(_copies, _name))(_copy_of(getattr(_packet, _name)))
