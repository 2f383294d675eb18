"""Moments of channels and their derivatives, by torch's kernels and by XLA's, against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

from jaxsr.interop.cpu_kernels import choice
from jaxsr.interop.lowerings.channel_moments import affine, channel_sums, moments, spread
from jaxsr.interop.mesh import make_mesh
from jaxsr.xla_calls.stored import stored

SHAPES = {1: (4, 16, 24, 32), 3: (4, 24, 32, 16)}
"""By the axis of the channels; large enough for torch's kernel."""
LAYOUTS = pytest.mark.parametrize(
    ("axis", "by_row"), [(axis, by_row) for axis in SHAPES for by_row in (False, True)]
)


@pytest.fixture(autouse=True)
def small_rows_too(monkeypatch):
    monkeypatch.setattr(choice, "_LEAST_MOMENTS_BY_ROW", 1 << 10)


@pytest.fixture(params=["native", "xla"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", request.param)
    return request.param


def images(axis, *, mean=0.0):
    return np.random.default_rng(0).standard_normal(SHAPES[axis], np.float32) + np.float32(mean)


def over_pixels(axis, by_row):
    return [i for i in range(4) if i != axis and (i or not by_row)]


@pytest.mark.sample(8)
@LAYOUTS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums(kernels, axis, by_row, dtype):
    with jax.enable_x64(dtype == "float64"):
        x = images(axis).astype(dtype)
        run = jax.jit(lambda x: channel_sums(x, axis=axis, by_row=by_row))
        expected = torch.from_numpy(x).double().sum(over_pixels(axis, by_row))
        np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-4)
        assert ("jaxsr_channel_sums" in run.lower(x).as_text()) == (kernels == "native")


@pytest.mark.sample(8)
@LAYOUTS
@pytest.mark.parametrize("mean", [0, 100])
@pytest.mark.parametrize("pixels", [24 * 32, 23 * 31])  # the second one is odd
def test_moments(kernels, axis, by_row, mean, pixels):
    x = images(axis, mean=mean)
    x = x[:, :23, :31] if axis == 3 and pixels % 2 else x
    run = jax.jit(lambda x: moments(x, axis=axis, by_row=by_row))
    axes = over_pixels(axis, by_row)
    variance, mean = torch.var_mean(torch.from_numpy(x).double(), axes, correction=0)
    # Closer than torch's float32 kernel, which is 3e-5 off where the mean is 100.
    rtol = 2e-6 if kernels == "native" else 1e-5
    np.testing.assert_allclose(run(x)[0], mean, rtol=rtol, atol=1e-6)
    np.testing.assert_allclose(run(x)[1], variance, rtol=rtol)
    assert ("jaxsr_channel_moments" in run.lower(x).as_text()) == (kernels == "native")


def normalised(x, scale, shift, axis, by_row):
    mean, variance = moments(x, axis=axis, by_row=by_row)
    scale = scale * jax.lax.rsqrt(variance + 1e-5)
    return affine(x, mean, scale, jnp.broadcast_to(shift, scale.shape), axis=axis)


@pytest.mark.sample(1)
@LAYOUTS
def test_every_derivative_of_a_normalisation(kernels, axis, by_row):
    x = images(axis, mean=2)
    scale, shift = np.linspace(0.5, 2, 16, dtype=np.float32), np.linspace(-1, 1, 16).astype("f")
    view = [16 if i == axis else 1 for i in range(4)]

    def loss(x, scale, shift):
        return (jnp.sin(normalised(x, scale, shift, axis, by_row)) * x).sum()

    def torch_loss(x, scale, shift):
        variance, mean = torch.var_mean(x, over_pixels(axis, by_row), correction=0, keepdim=True)
        out = (x - mean) * (variance + 1e-5).rsqrt() * scale.view(view) + shift.view(view)
        return (out.sin() * x).sum()

    arrays, every = (x, scale, shift), (0, 1, 2)
    tensors = tuple(torch.from_numpy(a).double() for a in arrays)
    gradients = torch.func.grad(torch_loss, every)
    for actual, expected in zip(
        jax.jit(jax.grad(loss, every))(*arrays), gradients(*tensors), strict=True
    ):
        largest = float(expected.abs().max())
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * largest)

    def squares(gradients):
        return sum((g**2).sum() for g in gradients)

    expected = torch.func.grad(lambda x: squares(gradients(x, *tensors[1:])))(tensors[0])
    second = jax.grad(lambda x: squares(jax.grad(loss, every)(x, scale, shift)))
    np.testing.assert_allclose(
        jax.jit(second)(x), expected, rtol=0, atol=1e-5 * float(expected.abs().max())
    )

    _, tangent = jax.jvp(loss, arrays, arrays)
    _, expected, *_ = torch.func.jvp(torch_loss, tensors, tensors)
    np.testing.assert_allclose(tangent, expected, rtol=2e-5)

    losses = jax.vmap(loss, (0, None, None))(np.stack([x, 2 * x]), scale, shift)
    expected = [torch_loss(tensors[0] * by, *tensors[1:]) for by in (1, 2)]
    np.testing.assert_allclose(losses, expected, rtol=2e-5)


def test_a_frozen_normalisation_needs_no_sums():
    x, one = images(3), jnp.ones(16)
    gradient = jax.jit(jax.grad(lambda x: jnp.sin(affine(x, one, one, one, axis=3)).sum()))
    assert "channel_dots" not in gradient.lower(x).as_text()
    np.testing.assert_allclose(gradient(x), np.cos(x), atol=1e-6)


@pytest.mark.sample(2)
@pytest.mark.parametrize("axis", SHAPES)
def test_spread_values_have_sums_as_gradient(kernels, axis):
    x = images(axis)
    run = jax.grad(lambda values: (spread(values, x.shape, axis=axis) * x).sum())
    expected = torch.from_numpy(x).double().sum(over_pixels(axis, False))
    np.testing.assert_allclose(run(np.zeros(16, np.float32)), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("by_row", [False, True])
def test_each_device_sums_its_rows(by_row):
    x = images(3, mean=3)
    scale = np.linspace(0.5, 2, 16, dtype=np.float32)
    mesh = make_mesh(2)
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    run = jax.jit(
        jax.grad(lambda x, s: (normalised(x, s, s, 3, by_row) ** 3 * x).mean(), argnums=(0, 1))
    )
    program = str(run.lower(placed, scale).compile().as_text())
    assert "jaxsr_channel_moments" in program and "all-gather" not in program
    assert ("all-reduce" in program) or by_row
    for actual, expected in zip(run(placed, scale), run(x, scale), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_stored_array_is_itself(kernels, dtype):
    x = jnp.asarray(images(1), dtype)
    value, pullback = jax.vjp(jax.jit(stored), x)
    np.testing.assert_array_equal(value, x)
    np.testing.assert_array_equal(pullback(x)[0], x)
    np.testing.assert_array_equal(jax.vmap(stored)(x), x)
