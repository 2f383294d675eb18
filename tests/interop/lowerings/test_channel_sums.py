"""Sums over pixels and their transposes, by torch's kernels and by XLA's, against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

from jaxsr.interop.cpu_kernels import choice
from jaxsr.interop.lowerings.channel_sums import channel_sums, scaled, spread, stored
from jaxsr.interop.mesh import make_mesh

SHAPES = {1: (4, 16, 24, 32), 3: (4, 24, 32, 16)}
"""By the axis of the channels; large enough for torch's kernel."""


@pytest.fixture(autouse=True)
def sums_by_torch(monkeypatch):
    monkeypatch.setattr(choice, "_LEAST_SUMMED", 1 << 15)


@pytest.fixture(params=["native", "xla"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", request.param)
    return request.param


def images(axis):
    return np.random.default_rng(0).standard_normal(SHAPES[axis], np.float32)


@pytest.mark.parametrize("axis", SHAPES)
@pytest.mark.parametrize("by_row", [False, True])
def test_sums(kernels, axis, by_row):
    x = images(axis)
    run = jax.jit(lambda x: channel_sums(x, axis=axis, by_row=by_row))
    pixels = [i for i in range(4) if i != axis and (i or not by_row)]
    expected = torch.from_numpy(x).double().sum(pixels)
    np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-4)
    assert ("jaxsr_channel_sums" in run.lower(x).as_text()) == (kernels == "native")


@pytest.mark.parametrize("axis", SHAPES)
@pytest.mark.parametrize("by_row", [False, True])
def test_every_derivative(axis, by_row):
    x = images(axis)
    values = np.random.default_rng(1).standard_normal((4, 16) if by_row else 16, np.float32)
    view = [4 if by_row else 1, 1, 1, 1]
    view[axis] = 16

    def loss(x, values):
        out = jnp.sin(scaled(x, values, axis=axis)) + spread(values, x.shape, axis=axis)
        return (channel_sums(out * x, axis=axis, by_row=by_row) ** 2).sum()

    def torch_loss(x, values):
        v = values.reshape(view)
        pixels = [i for i in range(4) if i != axis and (i or not by_row)]
        return ((((x * v).sin() + v) * x).sum(pixels) ** 2).sum()

    tensors = [torch.from_numpy(a).double() for a in (x, values)]
    first = torch.func.grad(torch_loss, (0, 1))
    for actual, expected in zip(
        jax.jit(jax.grad(loss, (0, 1)))(x, values), first(*tensors), strict=True
    ):
        np.testing.assert_allclose(
            actual, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max())
        )

    second = torch.func.grad(lambda v: first(tensors[0], v)[1].square().sum())(tensors[1])
    actual = jax.jit(jax.grad(lambda v: (jax.grad(loss, 1)(x, v) ** 2).sum()))(values)
    np.testing.assert_allclose(actual, second, rtol=1e-3, atol=1e-5 * float(second.abs().max()))
    _, tangent = jax.jvp(loss, (x, values), (x, values))
    _, expected, *_ = torch.func.jvp(torch_loss, tuple(tensors), tuple(tensors))
    np.testing.assert_allclose(tangent, expected, rtol=1e-4)


def test_vmap():
    x = images(3)
    together = jax.vmap(lambda x: channel_sums(x[None], axis=3))(x)
    np.testing.assert_allclose(together, x.sum((1, 2)), rtol=1e-4, atol=1e-4)


def test_each_device_sums_its_rows():
    x = images(3)
    placed = jax.device_put(x, NamedSharding(make_mesh(2), PartitionSpec("data")))
    run = jax.jit(lambda x: channel_sums(x, axis=3))
    program = str(run.lower(placed).compile().as_text())
    assert "all-reduce" in program and "all-gather" not in program
    np.testing.assert_allclose(run(placed), x.sum((0, 1, 2)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_stored_array_is_itself(kernels, dtype):
    x = jnp.asarray(images(1), dtype)
    value, pullback = jax.vjp(jax.jit(stored), x)
    np.testing.assert_array_equal(value, x)
    np.testing.assert_array_equal(pullback(x)[0], x)
    np.testing.assert_array_equal(jax.vmap(stored)(x), x)
