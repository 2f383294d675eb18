"""Fourier transforms between convolutions, whose channels lie last in memory on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax


class Spectral(nn.Module):
    """A Fourier unit as in LaMa: a convolution of spectra between convolutions of pixels."""

    def __init__(self, parts: str) -> None:
        super().__init__()
        self.before = nn.Conv2d(4, 4, 3, padding=1) if "before" in parts else nn.Identity()
        self.within = nn.Conv2d(8, 8, 1) if "within" in parts else nn.Identity()
        self.after = nn.Conv2d(4, 2, 3) if "after" in parts else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        spectrum = torch.fft.rfftn(x, dim=(-2, -1), norm="ortho")
        planes = self.within(torch.cat((spectrum.real, spectrum.imag), 1))
        real, imaginary = planes.chunk(2, 1)
        y = torch.fft.irfftn(
            torch.complex(real, imaginary), s=x.shape[-2:], dim=(-2, -1), norm="ortho"
        )
        return self.after(y)


@pytest.mark.parametrize("parts", ["before", "after", "before, within and after"])
def test_values_and_gradients_beside_convolutions(parts):
    torch.manual_seed(0)
    module, x = Spectral(parts), torch.randn(2, 4, 16, 16, requires_grad=True)
    reference = module(x)
    reference.square().sum().backward()
    converted = to_jax(module)

    def loss(params, x):
        out = converted.apply(params, {}, x)[0]
        return (out**2).sum(), out

    image = jnp.asarray(x.detach().numpy())
    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, out), (of_params, of_image) = run(converted.params, image)
    np.testing.assert_allclose(out, reference.detach(), atol=2e-6)
    assert x.grad is not None
    np.testing.assert_allclose(of_image, x.grad, rtol=1e-4, atol=2e-5)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(of_params[name], parameter.grad, rtol=1e-4, atol=1e-4)


def test_a_transform_outside_the_module():
    """A loss of frequencies in JAX, whose gradient goes back into a convolution."""
    torch.manual_seed(0)
    module, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 12, 12)
    converted = to_jax(module)

    def loss(params):
        out = converted.apply(params, {}, x.numpy())[0]
        return jnp.abs(jnp.fft.rfft2(out)).sum()

    gradients = jax.jit(jax.grad(loss))(converted.params)
    torch.fft.rfft2(module(x)).abs().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-3, atol=1e-3)
