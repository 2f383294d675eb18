"""Gradients of convolution weights with AVX2 alone, against torch's in float64."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.interop.cpu_kernels import choice, convolution, patches
from jaxsr.interop.cpu_kernels.onednn import Geometry
from jaxsr.interop.folding.policy import CHANNELS_LAST
from jaxsr.interop.mesh import make_mesh

aten = torch.ops.aten
CONVOLUTIONS = {
    "plain": (nn.Conv2d(5, 7, 3, padding=1), (3, 5, 9, 11)),
    "fewer outputs": (nn.Conv2d(7, 3, (3, 5), padding=(1, 2)), (3, 7, 9, 11)),
    "fewer outputs, dilated": (nn.Conv2d(6, 2, 3, padding=1, dilation=2), (2, 6, 9, 11)),
    "wider padding than the kernel": (nn.Conv2d(6, 2, 3, padding=4), (2, 6, 5, 4)),
    "fewer outputs, strided": (nn.Conv2d(6, 2, 3, stride=2, padding=1), (2, 6, 9, 10)),
    "strided, dilated": (nn.Conv2d(3, 8, (3, 2), (2, 3), (2, 1), (2, 1)), (2, 3, 12, 14)),
    "one axis": (nn.Conv1d(4, 6, 5, stride=2, padding=2), (3, 4, 23)),
    "three axes": (nn.Conv3d(3, 4, (1, 3, 2), padding=(0, 1, 1)), (2, 3, 4, 6, 7)),
    "pointwise": (nn.Conv2d(6, 8, 1), (2, 6, 9, 11)),
    "pointwise, strided": (nn.Conv2d(6, 8, 1, stride=2), (2, 6, 9, 10)),
    "pointwise, padded": (nn.Conv2d(6, 8, 1, padding=1), (2, 6, 5, 4)),
    "one pixel": (nn.Conv2d(6, 8, 3, padding=1), (2, 6, 1, 1)),
}


def _channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


@pytest.mark.sample(6)
@pytest.mark.parametrize("block_bytes", [1, 4000, 3 << 20], ids=["rows", "parts", "whole"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_gradient_is_torchs(name, block_bytes, monkeypatch):
    monkeypatch.setattr(patches, "_BLOCK_BYTES", block_bytes)
    torch.manual_seed(0)
    module, shape = CONVOLUTIONS[name]
    x, weight = torch.randn(shape), module.weight.detach()
    geometry = Geometry(module.stride, module.padding, module.dilation, 1)
    spatial = len(shape) - 2
    options: Any = (*_numbers(geometry), False, [0] * spatial, 1)
    arguments: Any = (x.double(), weight.double(), None, *options)
    g = torch.randn(aten.convolution(*arguments).shape)
    arguments = g.double(), x.double(), weight.double(), None, *options, [False, True, False]
    reference = aten.convolution_backward(*arguments)[1]

    for layout in (_channels_last, torch.Tensor.contiguous):
        result = torch.full_like(weight, torch.nan)
        patches.weight_gradient(layout(x), layout(g), result, geometry)
        error = (result.double() - reference).abs().max()
        assert error <= 2e-6 * max(1, reference.abs().max()), error


def _numbers(geometry):
    return geometry.stride, geometry.padding, geometry.dilation


@pytest.fixture
def avx2(monkeypatch):
    monkeypatch.setattr(choice, "_has_avx2_alone", lambda: True)
    monkeypatch.setattr(choice, "_LEAST_IMAGES", 1)


def _gradient_in_jax():
    """Gradient of a weight, in a JAX program, and by torch in float64."""
    torch.manual_seed(0)
    module, x = nn.Conv2d(32, 24, 3, padding=1), torch.randn(2, 32, 8, 8)
    model = to_jax(module, lane_folding=CHANNELS_LAST)

    def loss(params):
        return jnp.sin(model.apply(params, {}, jnp.asarray(x.numpy()))[0]).sum()

    gradients = jax.jit(jax.grad(loss))(model.params)
    torch.sin(module.double()(x.double())).sum().backward()
    reference: Any = module.weight.grad
    return np.asarray(gradients["weight"]), reference.numpy()


def test_programs_use_it_with_avx2_alone(avx2, monkeypatch):
    shapes = []
    weight_gradient = patches.weight_gradient

    def noted(x, g, weight, geometry):
        shapes.append(tuple(weight.shape))
        weight_gradient(x, g, weight, geometry)

    monkeypatch.setattr(convolution.patches, "weight_gradient", noted)
    result, reference = _gradient_in_jax()
    assert shapes == [(24, 32, 3, 3)]
    np.testing.assert_allclose(result, reference, rtol=0, atol=2e-6 * abs(reference).max())

    monkeypatch.setattr(choice, "_has_avx2_alone", lambda: False)
    result, reference = _gradient_in_jax()
    assert len(shapes) == 1
    np.testing.assert_allclose(result, reference, rtol=0, atol=2e-6 * abs(reference).max())


@pytest.mark.parametrize(
    "case", ["pointwise", "grouped", "few channels", "few outputs, strided", "float64", "torch"]
)
def test_where_onednn_is_as_fast(case, avx2, monkeypatch):
    geometry = Geometry((1, 1), (1, 1), (1, 1), 2 if case == "grouped" else 1)
    shape = {"few channels": (32, 16, 3, 3), "pointwise": (32, 32, 1, 1)}.get(case, (32, 32, 3, 3))
    weight = torch.empty(shape, dtype=torch.float64 if case == "float64" else torch.float32)
    if case == "few outputs, strided":
        geometry, weight = Geometry((2, 2), (1, 1), (1, 1), 1), torch.empty(8, 32, 3, 3)
    if case == "torch":
        monkeypatch.setenv("JAXSR_CPU_KERNELS", "torch")
    x = g = torch.empty(1, 32, 8, 8)
    assert not choice.weight_by_patches(x, g, weight, geometry)
    usual = Geometry((1, 1), (1, 1), (1, 1), 1), torch.empty(32, 32, 3, 3)
    assert choice.weight_by_patches(x, g, usual[1], usual[0]) == (case != "torch")


@pytest.mark.parametrize(("stride", "outputs"), [(1, 64), (2, 64), (1, 32)])
def test_of_large_pointwise_kernels_it_is_a_product(stride, outputs, avx2):
    geometry, weight = Geometry((stride,) * 2, (0, 0), (1, 1), 1), torch.empty(outputs, 256, 1, 1)
    x, g = torch.empty(1, 256, 7, 7), torch.empty(1, outputs, 7, 7)
    assert choice.weight_by_patches(x, g, weight, geometry) == ((stride, outputs) == (1, 64))


# ---- by XLA


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("avx2_alone", [True, False])
def test_of_small_images_xla_computes_it(avx2_alone, devices, monkeypatch):
    monkeypatch.setattr(choice, "_has_avx2_alone", lambda: avx2_alone)
    torch.manual_seed(0)
    module, x = nn.Conv2d(64, 72, 3, stride=2, padding=1), torch.randn(4, 64, 9, 9)
    model = to_jax(module, lane_folding=CHANNELS_LAST)
    mesh = make_mesh(devices)
    images = jax.device_put(x.numpy(), NamedSharding(mesh, PartitionSpec("data")))
    params = jax.device_put(model.params, NamedSharding(mesh, PartitionSpec()))

    def loss(params, images):
        return jnp.sin(model.apply(params, {}, images)[0]).sum()

    program = jax.jit(jax.grad(loss)).lower(params, images).compile()
    text = str(program.as_text())
    assert ('"jaxsr_convolution_weight"' in text) != avx2_alone
    assert set(re.findall(COLLECTIVE, text)) == ({"all-reduce"} if devices > 1 else set())
    torch.sin(module.double()(x.double())).sum().backward()
    reference: Any = module.weight.grad
    result = np.asarray(program(params, images)["weight"])
    scale = abs(reference).max().item()
    np.testing.assert_allclose(result, reference.numpy(), rtol=0, atol=2e-6 * scale)


COLLECTIVE = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


@pytest.mark.parametrize(
    "case", [{}, {"wrt": "input"}, {"groups": 2}, {"channels_last": False}, {"side": 32},
             {"dtype": "bfloat16"}, {"channels": 32}, {"kernel": 1}, {"torch": True}],
    ids=str,
)  # fmt: skip
def test_where_torchs_kernels_are_as_fast(case, avx2, monkeypatch):
    if case.get("torch"):
        monkeypatch.setenv("JAXSR_CPU_KERNELS", "torch")
    side, channels, kernel = (
        case.get(k, d) for k, d in (("side", 8), ("channels", 64), ("kernel", 3))
    )
    x = jnp.zeros((2, side, side, channels), case.get("dtype", "float32"))
    options = {"wrt": "weight", "groups": 1, "channels_last": True}
    options |= {name: value for name, value in case.items() if name in options}
    by_xla = choice.weight_by_xla(x, (64, channels, kernel, kernel), **options)
    assert by_xla == (not case)
