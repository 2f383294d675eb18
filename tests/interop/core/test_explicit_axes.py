"""Meshes whose axes are explicit, the default of `jax.make_mesh` in newer versions of JAX."""

import jax
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from torch import nn

from jaxsr.interop import to_jax


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(10, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.table(x)).mean(1)


MODULES = {
    "convolution": (lambda: nn.Conv2d(3, 4, 3), (8, 3, 8, 8)),
    "norm and pool": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 2)),
        (8, 3, 8, 8),
    ),
    "embedding": (Tokens, (8, 5)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0),
        (8, 5, 8),
    ),
    "lstm": (lambda: nn.Sequential(nn.LSTM(8, 4, batch_first=True)), (8, 5, 8)),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow if n in ("lstm", "transformer") else ())
        for n in MODULES
    ],
)
def test_value_and_gradient_are_those_of_one_device(name):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    model = to_jax(make())
    rng = np.random.default_rng(0)
    x = rng.random(shape, np.float32) if len(shape) > 2 else rng.integers(0, 10, shape)
    x = x.astype(np.float32 if len(shape) > 2 else np.int32)

    def loss(params, x):
        out, _ = model.apply(params, model.buffers, x, train=True)
        leaves = jax.tree.leaves(out)
        return sum((leaf**2).sum() for leaf in leaves), leaves[0]

    take = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, out), slopes = take(model.params, x)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, NamedSharding(mesh, P("data")))
        (on_mesh, sharded), slopes_on_mesh = take(model.params, placed)
        assert jax.typeof(sharded).sharding.spec[0] == "data"
    # Sums over devices are in another order.
    np.testing.assert_allclose(on_mesh, value, rtol=1e-5)
    np.testing.assert_allclose(sharded, out, atol=1e-5)
    for key in slopes:
        np.testing.assert_allclose(slopes_on_mesh[key], slopes[key], atol=2e-4, rtol=1e-4)


def test_gradients_where_no_mesh_is_set():
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    model, x = to_jax(module), np.random.default_rng(0).random((8, 4), np.float32)
    module(torch.from_numpy(x)).square().sum().backward()
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    placed = jax.device_put(x, NamedSharding(mesh, P("d")))

    def loss(params, x):
        return (model.apply(params, {}, x)[0] ** 2).sum()

    for gradient in (jax.jit(jax.grad(loss)), jax.jit(jax.grad(jax.jit(loss)))):
        slopes = gradient(model.params, placed)
        np.testing.assert_allclose(slopes["weight"], np.asarray(module.weight.grad), rtol=1e-5)
    with jax.set_mesh(mesh):  # which JAX asks for where the gradient is outside
        slopes = jax.grad(jax.jit(loss))(model.params, placed)
    np.testing.assert_allclose(slopes["weight"], np.asarray(module.weight.grad), rtol=1e-5)


class _Scaled(nn.Module):
    """A learned number for all elements, and a sum over several axes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).square().sum((0, 1))


def test_long_sums_whose_gradient_is_outside_of_jit():
    x = np.random.default_rng(0).random((8, 64, 4), np.float32)
    module = _Scaled()
    module(torch.from_numpy(x)).sum().backward()
    model = to_jax(module)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    placed = jax.device_put(x, NamedSharding(mesh, P("d")))
    summed = jax.jit(lambda params, x: model.apply(params, {}, x)[0].sum())
    with jax.set_mesh(mesh):
        slope = jax.grad(summed)(model.params, placed)["scale"]
    np.testing.assert_allclose(slope, np.asarray(module.scale.grad), rtol=1e-6)
