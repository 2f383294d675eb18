"""Convolutions with what follows them in one call, against plain torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn

from jaxsr.interop.aot.topology import load_topology
from jaxsr.interop.lowerings.fusion import fused
from tests.interop.lowerings.fused_programs import function, images, program

ACTIVATIONS = {
    "relu": nn.ReLU(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "hardswish": nn.Hardswish(),
    "silu": nn.SiLU(),
    "logistic": nn.Sigmoid(),
    "": nn.Identity(),
}


class Residual(nn.Module):
    def __init__(self, bias: bool = True):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1, bias=bias)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=bias)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


class TwoReaders(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        y = self.convolution(x)
        return torch.relu(y) * y


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_activations(name, bias):
    module = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, bias=bias), ACTIVATIONS[name])
    run = function(module)
    x = images(2, 4, 9, 11)
    x[0, 1, 4, 4] = np.nan
    x[1, 2, 4, 4] = np.inf
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(jax.jit(fused(run))(x), expected, rtol=1e-5, atol=1e-5)
    kernel = f"jaxsr_convolution{name and '_' + name}"
    assert program(fused(run), x).count(f"@{kernel}(") == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_residual_block_is_two_calls(dtype, bias):
    with jax.enable_x64(dtype == "float64"):
        module = Residual(bias).to(getattr(torch, dtype))
        run = function(module)
        x = torch.from_numpy(images(2, 4, 9, 11)).to(getattr(torch, dtype))
        expected = module(x).detach().float().numpy()
        array = jnp.asarray(x.float().numpy()).astype(dtype)
        out = jax.jit(fused(run))(array)
        assert out.dtype == dtype
        # bfloat16 has 8 bits; sums are rounded less often in the fused form.
        tolerance = 3e-2 if dtype == "bfloat16" else 1e-5
        np.testing.assert_allclose(out.astype(np.float32), expected, rtol=tolerance, atol=tolerance)
        text = program(fused(run), array)
        assert text.count("@jaxsr_convolution_relu(") == 1
        assert text.count("@jaxsr_convolution_add(") == 1


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU()), (2, 4, 9)),
        (nn.Sequential(nn.Conv3d(4, 4, 3, groups=2), nn.ReLU()), (2, 4, 5, 5, 5)),
        (nn.Sequential(nn.Conv2d(4, 8, 3, groups=4, dilation=2), nn.SiLU()), (2, 4, 9, 9)),
        (nn.Sequential(nn.ConvTranspose2d(4, 4, 3), nn.ReLU()), (2, 4, 9, 9)),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 4, 9, 9)),
        (TwoReaders(), (2, 4, 9, 9)),
        (Residual(), (4, 9, 9)),
    ],
    ids=str,
)
def test_other_modules(module, shape):
    x = images(*shape)
    expected = module.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(jax.jit(fused(function(module)))(x), expected, rtol=1e-5, atol=1e-5)


def test_what_else_is_read_is_computed_once():
    x = images(2, 4, 9, 9)
    text = program(fused(function(TwoReaders())), x)
    assert text.count("@jaxsr_convolution(") == 1
    assert "jaxsr_convolution_relu" not in text


def test_the_result_of_a_convolution_stays_a_result():
    run = function(nn.Conv2d(4, 4, 3))

    def both(x):
        y = run(x)
        return y, jnp.maximum(y, 0)

    x = images(2, 4, 9, 9)
    for got, want in zip(jax.jit(fused(both))(x), jax.jit(both)(x), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_derivatives_and_vmap_are_those_of_the_parts():
    run = function(Residual())
    x = images(3, 2, 4, 9, 9)

    def loss(run):
        return lambda x: jnp.sin(run(x)).sum()

    for transformed in (
        lambda run: jax.vmap(jax.grad(loss(run))),
        lambda run: jax.grad(lambda x: jax.vmap(loss(run))(x).sum()),
        lambda run: lambda x: jax.jvp(jax.grad(loss(run)), (x[0],), (x[1],))[1],
    ):
        got, want = (jax.jit(transformed(each))(x) for each in (fused(run), run))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_without_jit():
    module = Residual()
    x = images(2, 4, 9, 9)
    np.testing.assert_allclose(
        fused(function(module))(x), module(torch.from_numpy(x)).detach().numpy(), atol=1e-5
    )


def test_switched_off(monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    assert "jaxsr_" not in program(fused(function(Residual())), images(2, 4, 9, 9))


def test_programs_for_a_tpu_have_no_such_calls():
    topology = load_topology("v5e:1x1")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    x = jax.ShapeDtypeStruct((2, 4, 9, 9), jnp.float32, sharding=device)
    text = program(fused(function(Residual())), x)
    assert "jaxsr_" not in text
    assert text.count("stablehlo.convolution") == 2


def test_rows_stay_on_their_devices():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    module = Residual()
    x = images(8, 4, 9, 9)
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    run = jax.jit(fused(function(module)))
    np.testing.assert_allclose(run(placed), module(torch.from_numpy(x)).detach(), atol=1e-5)
    text = run.lower(placed).compile().as_text()
    assert text is not None
    assert "all-" not in text
    assert text.count('custom_call_target="jaxsr_convolution_add"') == 1


def test_another_function_of_that_name_is_no_activation():
    @jax.jit
    def relu(x):
        return jnp.where(x > 0, x, -x)

    convolved = function(nn.Conv2d(4, 4, 3))
    x = images(2, 4, 9, 9)
    run = fused(lambda x: relu(convolved(x)))
    assert "jaxsr_convolution_relu" not in program(run, x)
    np.testing.assert_allclose(jax.jit(run)(x), np.abs(convolved(x)), rtol=1e-5, atol=1e-5)
