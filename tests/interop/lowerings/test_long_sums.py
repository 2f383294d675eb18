"""Sums over several axes are as exact as torch's, where XLA's CPU programs add term after term.

float64 torch is the referee. An error may be eight times that of float32 torch, or eight steps of
float32; without `total` these programs were off by up to 8e-5.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.interop._core.accumulation import copies, total
from jaxsr.interop.mesh import make_mesh, place_batch

_SHAPE = (4, 6, 16, 32, 32)
_BOUND = 1e-6

_SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.square().sum(),
    "mean": lambda x: x.square().mean(),
    "sum of images": lambda x: x.square().sum((1, 2, 3, 4)),
    "mean of channels": lambda x: x.square().mean((0, 2, 3, 4), keepdim=True),
    "mean of whole numbers": lambda x: (x * 7).round().mean(),
    "var": lambda x: x.square().var(),
    "std of channels": lambda x: x.square().std((0, 2, 3, 4)),
    "norm": lambda x: torch.linalg.vector_norm(x.square()),
    "norm 1": lambda x: torch.linalg.vector_norm(x.square(), 1),
    "norm 3": lambda x: torch.linalg.vector_norm(x.square(), 3),
    "mse_loss": lambda x: F.mse_loss(x, x.square()),
    "l1_loss": lambda x: F.l1_loss(x, x.square()),
    "layer_norm": lambda x: F.layer_norm(x.square() + 3, _SHAPE[1:]),
    "group_norm": lambda x: F.group_norm(x.square() + 3, 2),
    "tiny last axis": lambda x: x.square().reshape(-1, 32, 3).mean(),
}


class _Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class _Scaled(nn.Module):
    """Learned numbers that are broadcast over an image, and a softmax whose gradients cancel."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(shape) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).softmax(-1)


def _images() -> torch.Tensor:
    return torch.rand(_SHAPE, generator=torch.Generator().manual_seed(0))


def _error(value: object, exact: torch.Tensor) -> float:
    difference = np.asarray(value, np.float64) - exact.detach().numpy()
    return float(np.abs(difference).max() / exact.abs().max())


@pytest.mark.parametrize("name", _SUMS)
def test_sums(name: str):
    images = _images()
    value, _ = jax.jit(to_jax(_Of(_SUMS[name])).apply)({}, {}, images.numpy())
    exact = _SUMS[name](images.double())
    assert _error(value, exact) < max(_BOUND, 8 * _error(_SUMS[name](images), exact))


@pytest.mark.parametrize("shape", [(), (6, 1, 1, 1), (32,), (16, 1, 32), (1, 6, 16, 1, 1)])
def test_gradients_of_broadcast_parameters(shape: tuple[int, ...]):
    images, module = _images(), _Scaled(shape)
    weights = torch.randn(_SHAPE, generator=torch.Generator().manual_seed(1))
    model = to_jax(module)

    def weighted(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.vdot(model.apply(params, {}, images.numpy())[0], weights.numpy())

    gradient = jax.jit(jax.grad(weighted))(model.params)["scale"]
    exact, rounded = (_Scaled(shape).to(dtype) for dtype in (torch.float64, torch.float32))
    for twin in (exact, rounded):
        twin.load_state_dict(module.state_dict())
        dtype = twin.scale.dtype
        (twin(images.to(dtype)) * weights.to(dtype)).sum().backward()
    assert exact.scale.grad is not None and rounded.scale.grad is not None
    # The terms cancel, so torch's own error is larger than a rounding step.
    allowed = max(_BOUND, 8 * _error(rounded.scale.grad, exact.scale.grad))
    assert _error(gradient, exact.scale.grad) < allowed


def test_gradient_of_a_linears_bias_over_several_axes():
    """Below the size from which torch's kernel sums it; a softmax makes its terms cancel."""
    images = torch.rand((4, 24, 24, 8), generator=torch.Generator().manual_seed(0))
    module = nn.Sequential(nn.Linear(8, 48), nn.Softmax(-1))
    model = to_jax(module)
    weights = torch.randn((4, 24, 24, 48), generator=torch.Generator().manual_seed(1))

    def weighted(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.vdot(model.apply(params, {}, images.numpy())[0], weights.numpy())

    gradient = jax.jit(jax.grad(weighted))(model.params)["0.bias"]
    exact = module.double()
    (exact(images.double()) * weights.double()).sum().backward()
    reference = exact[0].bias.grad
    assert isinstance(reference, torch.Tensor)
    assert _error(gradient, reference) < _BOUND


def test_half_precision_is_summed_in_float32():
    images = _images().bfloat16()
    value, _ = jax.jit(to_jax(_Of(lambda x: x.sum((0, 2, 3, 4)))).apply)(
        {}, {}, jnp.asarray(images.float().numpy(), jnp.bfloat16)
    )
    assert value.dtype == jnp.bfloat16
    assert _error(value.astype(np.float32), images.double().sum((0, 2, 3, 4))) <= 2**-8


def test_derivatives_and_transformations_are_those_of_sum():
    images = _images().numpy()

    def squares(x: jax.Array, add: Callable[..., jax.Array]) -> jax.Array:
        return add(x * x, (0, 2, 3), keepdims=True)

    for transformed in (
        lambda add: jax.vmap(lambda x: squares(x, add), in_axes=4)(images),
        lambda add: jax.grad(lambda x: (squares(x, add) ** 2).sum())(images),
        lambda add: jax.jvp(lambda x: squares(x, add), (images,), (images,))[1],
        lambda add: jax.grad(
            lambda x: jax.grad(lambda y: (squares(y, add) ** 2).sum())(x).sum() ** 2
        )(images),
    ):
        ours, plain = transformed(total), transformed(jnp.sum)
        np.testing.assert_allclose(ours, plain, rtol=1e-4)
    values = jnp.arange(6.0).reshape(6, 1, 1, 1)
    batch = jax.vmap(lambda v: copies(v, _SHAPE), out_axes=2)(jnp.stack([values, values + 1]))
    np.testing.assert_array_equal(batch[:, :, 1], np.broadcast_to(values + 1, _SHAPE))


def test_on_a_mesh():
    images = _images()
    mesh = make_mesh(2)
    run = jax.jit(to_jax(_Of(_SUMS["mean"])).apply)
    value, _ = run({}, {}, place_batch(images.numpy(), mesh))
    assert _error(value, _SUMS["mean"](images.double())) < _BOUND
