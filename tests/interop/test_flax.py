"""A torch module in a Flax NNX project, against the same training done with `to_jax` and optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.interop.flax import TorchModule

STEPS = 8


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 1)
    )


def batch() -> tuple[jax.Array, jax.Array]:
    x = jax.random.normal(jax.random.key(0), (4, 3, 8, 8))
    return x, jnp.sin(3 * x)


def train_with_optax() -> tuple[list[float], dict, dict]:
    jm, tx = to_jax(network()), optax.adam(1e-2)
    x, y = batch()

    @jax.jit
    def step(params, buffers, state):
        def loss(params):
            out, after = jm.apply(params, buffers, x, train=True)
            return jnp.mean((out - y) ** 2), after

        (value, buffers), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), buffers, state, value

    params, buffers, state, losses = jm.params, jm.buffers, tx.init(jm.params), []
    for _ in range(STEPS):
        params, buffers, state, value = step(params, buffers, state)
        losses.append(float(value))
    return losses, params, buffers


def test_trains_like_the_plain_function():
    net = TorchModule(network())
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
    x, y = batch()

    @nnx.jit
    def step(net, optimizer):
        value, grads = nnx.value_and_grad(lambda net: jnp.mean((net(x) - y) ** 2))(net)
        optimizer.update(net, grads)
        return value

    losses = [float(step(net, optimizer)) for _ in range(STEPS)]
    wanted, params, buffers = train_with_optax()
    assert losses[-1] < 0.8 * losses[0]
    # The same operations in another program: XLA fuses them differently.
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    for name, value in params.items():
        np.testing.assert_allclose(net.params[name][...], value, atol=1e-4)
    for name, value in buffers.items():
        np.testing.assert_allclose(net.buffers[name][...], value, atol=1e-4)


class Project(nnx.Module):
    """A module that a Flax user writes around it."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.body = TorchModule(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), rngs=rngs)
        self.head = nnx.Linear(6, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.body(x))


def test_modes_keys_and_state_follow_the_enclosing_module():
    model = Project(nnx.Rngs(0))
    x = jnp.ones((3, 6))
    model.train()
    assert not np.array_equal(model(x), model(x)), "each call draws anew"
    model.eval()
    np.testing.assert_array_equal(model(x), model(x))
    params = nnx.state(model, nnx.Param)
    assert len(jax.tree.leaves(params)) == 4
    graph, state = nnx.split(model)
    np.testing.assert_array_equal(nnx.merge(graph, state)(x), model(x))
