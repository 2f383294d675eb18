"""Convolutions of concatenated channels as sums over the parts, against plain torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn

from jaxsr.interop.aot.topology import load_topology
from jaxsr.interop.cpu_kernels import choice
from jaxsr.interop.lowerings.fusion import fused
from tests.interop.lowerings.fused_programs import function, images, program


class Dense(nn.Module):
    """A convolution of its input, of features of it, and of the input again."""

    def __init__(self, kernel=3, bias=True, follow=torch.relu, spatial=2):
        super().__init__()
        convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[spatial]
        self.features = convolution(4, 3, 3, padding=1)
        self.gathered = convolution(11, 4, kernel, padding=kernel // 2, bias=bias)
        self.follow = follow

    def forward(self, x):
        return self.follow(self.gathered(torch.cat((x, self.features(x), x), 1)))


class Shortcut(nn.Module):
    """A sum as large as the result, and a concatenation with two readers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 4, 3, padding=1) for _ in range(2))

    def forward(self, x):
        both = torch.cat((x, x.flip(-1)), 1)
        return x + self.first(both), self.second(both)


class AlsoRead(nn.Module):
    def __init__(self, combine):
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)
        self.combine = combine

    def forward(self, x):
        both = torch.cat((x, -x), 1)
        return self.combine(both, self.convolution(both))


class OfRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.convolution(torch.cat((x, -x), 2))


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1, groups=2)

    def forward(self, x):
        return self.convolution(torch.cat((x, -x), 1))


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(choice, "_LEAST_CONCATENATED", 0)


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "module",
    [
        Dense(),
        Dense(kernel=1, follow=nn.Identity()),
        Dense(bias=False, follow=nn.LeakyReLU(0.2)),
        Dense(spatial=1),
        Dense(spatial=3, bias=False, follow=nn.SiLU()),
        Dense(follow=torch.square),
        Shortcut(),
        AlsoRead(torch.mul),
        AlsoRead(torch.add),
        OfRows(),
        Grouped(),
    ],
    ids=[
        "dense", "pointwise", "leaky", "1d", "3d", "square", "shortcut", "read", "added", "rows",
        "grouped",
    ],
)  # fmt: skip
def test_equals_torch(any_size, module):
    x = images(2, 4, *[9, 7, 5][: getattr(module, "features", nn.Conv2d(1, 1, 1)).weight.ndim - 2])
    expected = module.eval()(torch.from_numpy(x))
    got = jax.jit(fused(function(module)))(x)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float64, 1e-12), (torch.bfloat16, 0.05)], ids=str
)
def test_dtypes(any_size, dtype, atol):
    module = Dense().eval()
    x = torch.from_numpy(images(2, 4, 9, 7)).double()
    double = module.double()(x).detach().numpy()
    with jax.enable_x64(dtype is torch.float64):
        run = fused(function(module.to(dtype)))
        got = jax.jit(run)(x.numpy().astype(str(dtype).removeprefix("torch.")))
        assert got.dtype == str(dtype).removeprefix("torch.")
        np.testing.assert_allclose(np.asarray(got, np.float64), double, atol=atol)


def test_each_part_is_convolved_and_nothing_is_concatenated(any_size):
    text = program(fused(function(Dense())), images(2, 4, 9, 7))
    assert "concatenate" not in text
    assert text.count("@jaxsr_convolution(") == 2 and text.count("@jaxsr_convolution_add(") == 2


def test_two_readers_share_no_concatenation(any_size):
    text = program(fused(function(Shortcut())), images(2, 4, 9, 7))
    assert "concatenate" not in text
    assert text.count("@jaxsr_convolution_add(") == 2


@pytest.mark.parametrize(
    "module",
    [AlsoRead(torch.mul), AlsoRead(torch.add), OfRows(), Grouped()],
    ids=["read", "added", "rows", "grouped"],
)
def test_what_is_needed_whole_is_concatenated(any_size, module):
    text = program(fused(function(module)), images(2, 4, 9, 7))
    assert text.count("stablehlo.concatenate") == 1
    assert text.count("custom_call @jaxsr_convolution") == 1


def test_small_images_are_concatenated():
    text = program(fused(function(Dense())), images(2, 4, 9, 7))
    assert text.count("stablehlo.concatenate") == 1
    assert text.count("@jaxsr_convolution_relu(") == 1


def test_large_images_are_not():
    x = jax.ShapeDtypeStruct((1, 4, 1024, 1024), jnp.float32)
    assert "stablehlo.concatenate" not in program(fused(function(Dense())), x)


def test_derivatives_and_vmap_are_those_of_the_whole(any_size):
    run = function(Dense())
    x = images(3, 2, 4, 9, 7)

    def loss(run):
        return lambda x: jnp.sin(run(x)).sum()

    for transformed in (
        lambda run: jax.vmap(jax.grad(loss(run))),
        lambda run: lambda x: jax.jvp(jax.grad(loss(run)), (x[0],), (x[1],))[1],
    ):
        got, want = (jax.jit(transformed(each))(x) for each in (fused(run), run))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_switched_off(any_size, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    text = program(fused(function(Dense())), images(2, 4, 9, 7))
    assert "jaxsr_" not in text and text.count("stablehlo.concatenate") == 1


def test_programs_for_a_tpu_convolve_the_whole(any_size):
    topology = load_topology("v5e:1x1")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    x = jax.ShapeDtypeStruct((2, 4, 9, 7), jnp.float32, sharding=device)
    text = program(fused(function(Dense())), x)
    assert "jaxsr_" not in text
    assert text.count("stablehlo.convolution") == 2 and text.count("stablehlo.concatenate") == 1


def test_rows_stay_on_their_devices(any_size):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    module = Dense()
    x = images(8, 4, 9, 7)
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    run = jax.jit(fused(function(module)))
    np.testing.assert_allclose(run(placed), module(torch.from_numpy(x)).detach(), atol=1e-5)
    assert "all-" not in (run.lower(placed).compile().as_text() or "all-")
