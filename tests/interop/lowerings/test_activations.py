"""Activations against torch's own, with torch in float64 as referee."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxsr.interop import to_jax

POINTS = np.concatenate([np.linspace(-12, 12, 20011), [0.0, -0.0, 1e-30, np.nan]])


def of_jax(module, x):
    model = to_jax(module)

    def value(x):
        return model.apply({}, {}, x)[0]

    def slope(x):
        return jax.grad(lambda x: value(x).sum())(x)

    curvature = jax.grad(lambda x: slope(x).sum())
    return [np.asarray(f(x), np.float64) for f in map(jax.jit, (value, slope, curvature))]


def of_torch(module, x):
    x = x.clone().requires_grad_()
    value = module(x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    return [each.detach().double().numpy() for each in (value, slope, curvature)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gelu_is_as_exact_as_torchs_own(approximate, dtype):
    gelu = torch.nn.GELU(approximate)
    x = torch.from_numpy(POINTS).to(dtype)
    ours = of_jax(gelu, jnp.asarray(x.float().numpy(), str(dtype).removeprefix("torch.")))
    exact = of_torch(gelu, x.double())
    scale = 1 + x.double().abs().numpy()
    for value, torchs, referee in zip(ours, of_torch(gelu, x), exact, strict=True):
        compared = ~np.isnan(torchs)
        error, bound = (
            np.max(np.abs(each - referee)[compared] / scale[compared]) for each in (value, torchs)
        )
        assert error <= 2.5 * max(bound, torch.finfo(dtype).eps)
        assert np.isnan(value[~compared]).all()


def test_gelu_leaves_its_argument_alone_for_the_backward_pass():
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    model, x = to_jax(torch.nn.Sequential(*layers)), jnp.ones((4096, 64))

    def loss(params, x):
        return jnp.square(model.apply(params, {}, x)[0]).sum()

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(model.params, x).compile()
    memory: Any = program.memory_analysis()
    # An argument and a result of each layer; with JAX's own GELU 13 arrays.
    assert memory.temp_size_in_bytes <= 8 * x.nbytes
