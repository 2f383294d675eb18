"""Checks that torch code computes the same in JAX as in torch, with this machine's versions.

A few of the programs of `docs/conformance.md`: those that break first when torch, torchax or JAX
change. The torch side runs on the CPU.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxsr.doctor.checks import Finding, judged, raised, relative_error
from jaxsr.interop.install import install_extra

# Float32 rounding through a few layers, in units of the largest value.
_TOLERANCE = 2e-5
_BROKEN = (
    f"install the versions that jaxsr asks for ({install_extra(None)}); docs/conformance.md says "
    "which are known to work, pytest tests/interop tests yours"
)


def check_adapter() -> Iterator[Finding]:
    """torchax's lowerings, and each program in both: forward, gradient and buffers."""
    from jaxsr.interop.explanation import HOW_TO_INSTALL, lacking_lowerings

    lacking = lacking_lowerings()
    detail = "; ".join(lacking[:3]) + (f"; and {len(lacking) - 3} more" if lacking[3:] else "")
    yield judged("torchax's lowerings", not lacking, detail or "all there", HOW_TO_INSTALL)
    for name, module, inputs in _programs():
        try:
            error = _difference(module, inputs)
        except Exception as problem:
            yield raised(name, problem, _BROKEN)
            continue
        detail = f"differs from torch by {error:.1e} of the largest value"
        yield judged(name, error <= _TOLERANCE, detail, _BROKEN)


def _programs() -> list[tuple[str, Any, np.ndarray]]:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    class Resize(nn.Module):
        """Antialiased, which torchax lacks."""

        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(x, (7, 5), mode="bicubic", antialias=True)

    class InPlace(nn.Module):
        """Writes through views, which torchax loses."""

        def forward(self, x: Tensor) -> Tensor:
            y = x * 1
            y.transpose(1, 2).mul_(2)
            y[:, 0].zero_()
            y.view(-1)[:9].add_(1)
            return y * x

    class Frozen(nn.Module):
        """A part under `no_grad`, which torchax differentiates."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 8))

        def forward(self, x: Tensor) -> Tensor:
            y = x * self.weight
            with torch.no_grad():
                scale = y.square().sum()
            return y * scale

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        rng = np.random.default_rng(0)
        images = rng.standard_normal((2, 4, 12, 12)).astype(np.float32)
        normalized = nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8))
        return [
            ("convolution, BatchNorm", normalized, images),
            ("transposed convolution", nn.ConvTranspose2d(4, 8, 3, stride=2, groups=2), images),
            ("antialiased resize", Resize(), images),
            ("adaptive pooling", nn.AdaptiveMaxPool2d((5, 3)), images),
            ("attention", nn.TransformerEncoderLayer(8, 2, 16, 0.0), images[0, :, :8, :8]),
            ("writes through views", InPlace(), images[0]),
            ("no_grad", Frozen(), images[0, 0, :, :8]),
        ]


def _difference(module: Any, inputs: np.ndarray) -> float:
    """The worst of output, parameter gradients and buffers after one training step's pass."""
    import jax
    import torch

    from jaxsr.interop import to_jax

    module.train()
    model = to_jax(module)

    def loss(params: dict[str, jax.Array], x: jax.Array) -> tuple:
        out, buffers = model.apply(params, model.buffers, x, train=True)
        # Not squares: those of normalised values sum to a constant, whose gradient is rounding.
        return (out**3).sum(), (out, buffers)

    with jax.default_matmul_precision("highest"):
        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        (_, (out, buffers)), (grads, into) = step(model.params, inputs)
    x = torch.from_numpy(inputs).requires_grad_()
    expected = module(x)
    (expected**3).sum().backward()
    pairs = [(out, expected.detach()), (into, x.grad)]
    pairs += [(grads[name], p.grad) for name, p in module.named_parameters() if name in grads]
    pairs += [(buffers[name], b) for name, b in module.named_buffers() if name in buffers]
    errors = [
        relative_error(by_jax, by_torch.numpy(), least_scale=1.0) for by_jax, by_torch in pairs
    ]
    return float(np.max(errors))  # NaN where one is; Python's max may pass it
