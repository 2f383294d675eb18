"""Fourier transforms in torch's three normalisations."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax._src.interpreters import mlir
from jax._src.lax import fft as jax_fft

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers, overrides
from jaxsr.interop._core.trace import Trace


def _on_cpu(
    context: mlir.LoweringRuleContext, x: mlir.ir.Value, **options: Any
) -> list[mlir.ir.Value]:
    """JAX's lowering, between arrays whose axes lie in their order.

    XLA's transform of CPUs takes no other, and its layout assignment does not see to that: a
    convolution nearby that keeps channels last made the program fail when it ran (jaxlib 0.10.2,
    `fft_thunk.cc`: IsMonotonicWithDim0Major). JAX has no public name for its rule.
    """
    (out,) = jax_fft._fft_lowering(context, _in_order(x), **options)
    return [_in_order(out)]


def _in_order(x: mlir.ir.Value) -> mlir.ir.Value:
    order = [list(range(x.type.rank))[::-1]]
    constrained = mlir.custom_call(
        "LayoutConstraint", result_types=[x.type], operands=[x],
        api_version=1, operand_layouts=order, result_layouts=order,
    )  # fmt: skip
    return constrained.result


mlir.register_lowering(jax.lax.fft_p, _on_cpu, platform="cpu")


def _norm(
    x: jax.Array, dims: Sequence[int], normalization: int, count: int | None = None
) -> jax.Array:
    """torch's fft_norm_mode: 0 none, 1 by √n, 2 by n."""
    n = math.prod(x.shape[d] for d in dims) if count is None else count
    if normalization == 1:
        return x / math.sqrt(n)
    return x / n if normalization == 2 else x


@lowers(aten._fft_c2c.default)
def fft_c2c(x: jax.Array, dims: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    if not dims:
        return x
    transform, norm = (jnp.fft.fftn, "backward") if forward else (jnp.fft.ifftn, "forward")
    return _norm(transform(x, axes=tuple(dims), norm=norm), dims, normalization)


@lowers(aten._fft_r2c.default)
def fft_r2c(x: jax.Array, dims: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    n = math.prod(x.shape[d] for d in dims)
    transform = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return _norm(transform(x, axes=tuple(dims)), dims, normalization, n)


@lowers(aten._fft_c2r.default)
def fft_c2r(x: jax.Array, dims: Sequence[int], normalization: int, last: int) -> jax.Array:
    shape = [x.shape[d] for d in dims[:-1]] + [last]
    out = jnp.fft.irfftn(x, s=shape, axes=tuple(dims), norm="forward")
    return _norm(out, dims, normalization, math.prod(shape))


@overrides(torch.istft, torch.Tensor.istft)
def _istft(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """torch looks at values: whether the windows cover every sample."""
    return _istft_of(*args, **kwargs)


def _istft_of(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    spectra = input if input.ndim == 3 else input[None]
    norm = "ortho" if normalized else "backward"
    onesided = spectra.shape[1] != n_fft if onesided is None else onesided
    if return_complex or not onesided:
        frames = torch.fft.ifft(spectra, n_fft, dim=1, norm=norm)
        frames = frames if return_complex else frames.real
    else:
        frames = torch.fft.irfft(spectra, n_fft, dim=1, norm=norm)
    window = torch.ones(width) if window is None else window
    left = (n_fft - width) // 2
    window = F.pad(window, (left, n_fft - width - left))
    total = n_fft + hop * (frames.shape[2] - 1)

    def overlapped(columns: torch.Tensor) -> torch.Tensor:
        if columns.is_complex():
            return torch.complex(overlapped(columns.real), overlapped(columns.imag))
        folded = F.fold(columns, (1, total), (1, n_fft), stride=(1, hop))
        return folded.reshape(columns.shape[0], total)

    weights = (window * window)[None, :, None].expand(1, n_fft, frames.shape[2])
    start = n_fft // 2 if center else 0
    end = total - start if length is None else min(start + length, total)
    signal = overlapped(frames * window[None, :, None])[:, start:end]
    signal = signal / overlapped(weights)[:, start:end]
    if length is not None:
        signal = F.pad(signal, (0, length - signal.shape[1]))
    return signal if input.ndim == 3 else signal[0]
