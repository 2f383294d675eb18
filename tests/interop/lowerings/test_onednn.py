"""oneDNN's convolutions by its own interface, against torch's in float64."""

import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.interop.cpu_kernels import onednn, torch_calls
from jaxsr.interop.folding.policy import CHANNELS_LAST
from jaxsr.interop.mesh import MeshShape, make_mesh

aten = torch.ops.aten
CONVOLUTIONS = {
    "plain": (nn.Conv2d(5, 7, 3, padding=1), (2, 5, 9, 11)),
    "one axis": (nn.Conv1d(4, 6, 5, stride=2, padding=2), (3, 4, 23)),
    "three axes": (nn.Conv3d(3, 4, (1, 3, 2), padding=(0, 1, 1)), (2, 3, 4, 6, 7)),
    "strided, dilated": (nn.Conv2d(3, 8, (3, 2), (2, 3), (2, 1), (2, 1)), (2, 3, 12, 14)),
    "grouped": (nn.Conv2d(8, 12, 3, groups=4), (2, 8, 7, 6)),
    "depthwise": (nn.Conv2d(16, 16, 5, padding=2, groups=16), (2, 16, 8, 9)),
    "one channel": (nn.Conv2d(1, 1, 3, padding=1), (1, 1, 5, 6)),
    "one pixel": (nn.Conv2d(6, 5, 1), (2, 6, 1, 1)),
}


def _case(name):
    torch.manual_seed(0)
    module, shape = CONVOLUTIONS[name]
    x = _channels_last(torch.randn(shape))
    spatial = len(shape) - 2
    geometry = onednn.Geometry(module.stride, module.padding, module.dilation, module.groups)
    options: Any = (
        module.stride, module.padding, module.dilation, False, [0] * spatial, module.groups,
    )  # fmt: skip
    return module, x, geometry, options


def _channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def _assert_close(result, reference):
    error = (result.double() - reference).abs().max()
    assert error <= 2e-6 * max(1, reference.abs().max()), error


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_result_and_both_gradients(name):
    assert onednn.version() is not None, "the extra `cpu` is not installed"
    module, x, geometry, options = _case(name)
    weight, bias = module.weight.detach(), module.bias.detach()
    arguments: Any = (x.double(), weight.double(), bias.double(), *options)
    reference = aten.convolution(*arguments)
    out = _channels_last(torch.full(reference.shape, torch.nan))
    assert onednn.convolve("out", x, weight, out, geometry, bias)
    _assert_close(out, reference)

    g = _channels_last(torch.randn(reference.shape))
    mask = [True, True, False]
    arguments = g.double(), x.double(), weight.double(), None, *options, mask
    of_x, of_weight, _ = aten.convolution_backward(*arguments)
    cases: Any = (
        ("input", (g, weight), torch.full_like(x, torch.nan), of_x),
        ("weight", (x, g), torch.full_like(weight, torch.nan), of_weight),
    )
    for role, (image, other), result, gradient in cases:
        assert onednn.convolve(role, image, other, result, geometry)
        _assert_close(result, gradient)


def test_what_torch_has_to_compute(monkeypatch):
    module, x, geometry, _ = _case("plain")
    weight, bias = module.weight.detach(), module.bias.detach()
    out = torch.zeros(2, 7, 9, 11)
    assert not onednn.convolve("out", x, weight, out, geometry, bias)
    assert not onednn.convolve("out", x.contiguous(), weight, _channels_last(out), geometry, bias)
    half_x, half_weight, half_out = (t.bfloat16() for t in (x, weight, _channels_last(out)))
    assert not onednn.convolve("out", half_x, half_weight, half_out, geometry)
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "torch")
    assert not onednn.convolve("out", x, weight, _channels_last(out), geometry, bias)
    assert not out.any()


def test_large_convolutions_have_torchs_threads_and_small_ones_one(monkeypatch):
    module, x, geometry, _ = _case("plain")
    library: Any = onednn._library()
    before = library.omp_get_max_threads()
    out = _channels_last(torch.zeros(2, 7, 9, 11))
    threads_of_call = []
    run = onednn._Plan.run

    def noted(self, *arrays):
        threads_of_call.append(library.omp_get_max_threads())
        run(self, *arrays)

    monkeypatch.setattr(onednn._Plan, "run", noted)
    # As where torch has an OpenMP of its own.
    monkeypatch.setattr(torch, "get_num_threads", lambda: before + 2)
    assert onednn.convolve("out", x, module.weight.detach(), out, geometry)
    monkeypatch.setattr(onednn, "_LEAST_SHARED", 1)
    assert onednn.convolve("out", x, module.weight.detach(), out, geometry)
    assert threads_of_call == [1, before + 2]
    assert library.omp_get_max_threads() == before


def test_a_convolution_is_described_once_for_all_of_xlas_threads():
    module, x, geometry, _ = _case("depthwise")
    weight, out = module.weight.detach(), _channels_last(torch.zeros(2, 16, 8, 9))
    onednn._plan.cache_clear()

    def in_new_thread():
        thread = threading.Thread(target=onednn.convolve, args=("out", x, weight, out, geometry))
        thread.start()
        thread.join()

    for _ in range(3):
        in_new_thread()
    assert onednn._plan.cache_info().misses == 1


def test_devices_that_begin_at_the_same_moment_share_an_engine(monkeypatch):
    module, x, geometry, _ = _case("plain")
    weight, bias = module.weight.detach(), module.bias.detach()
    reference = module(x).detach()
    call, created = onednn._call, []

    def slow(name, *arguments):
        if name == "dnnl_engine_create":
            created.append(name)
            time.sleep(0.1)
        call(name, *arguments)

    monkeypatch.setattr(onednn, "_call", slow)
    monkeypatch.setattr(onednn, "_engine", onednn._once(onednn._engine.__wrapped__))
    onednn._plan.cache_clear()
    results = [_channels_last(torch.zeros_like(reference)) for _ in range(4)]
    threads = [
        threading.Thread(target=onednn.convolve, args=("out", x, weight, out, geometry, bias))
        for out in results
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    onednn._plan.cache_clear()  # of an engine that goes with this test
    assert len(created) == 1
    for out in results:
        torch.testing.assert_close(out, reference)


def test_impossible_geometry_is_left_to_torch():
    x, w, out = torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3), torch.ones(1, 3, 9, 9)
    geometry = onednn.Geometry((1, 1), (0, 0), (1, 1), 1)
    assert not onednn.convolve("out", _channels_last(x), w, _channels_last(out), geometry)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_a_network_and_its_gradients(kernels, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", kernels)
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, groups=2), nn.ReLU(),
        nn.ConvTranspose2d(16, 4, 4, 2),
    )  # fmt: skip
    x = torch.randn(2, 3, 64, 64)
    jm = to_jax(network, lane_folding=CHANNELS_LAST)

    def loss(params, x):
        return jnp.square(jm.apply(params, jm.buffers, x)[0]).sum()

    gradients = jax.jit(jax.grad(loss))(jm.params, jnp.asarray(x.numpy()))
    network.double()(x.double()).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        reference = parameter.grad.numpy()
        scale = np.abs(reference).max()
        np.testing.assert_allclose(gradients[name], reference, rtol=0, atol=3e-6 * scale)


def test_a_checkpoint_operation_by_operation():
    """Its kernels run while torch's code is still being traced."""

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, 2))

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)

    torch.manual_seed(0)
    jm = to_jax(Checkpointed())

    def gradients(params):
        return jax.grad(lambda p: jm.apply(p, jm.buffers, jnp.ones((2, 3, 8, 8)))[0].sum())(params)

    expected = jax.jit(gradients)(jm.params)
    for name, gradient in gradients(jm.params).items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pixels", [4, 64])
def test_relu_takes_its_mask_from_the_result(pixels):
    x = torch.randn(2, 8, pixels, pixels)
    x.view(-1)[:6] = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 1.0])
    jm = to_jax(nn.ReLU())
    out, gradient = jax.jit(jax.vjp, static_argnums=0)(lambda x: jm.apply({}, {}, x)[0], x.numpy())
    (gradient,) = gradient(jnp.ones_like(out))
    torch.relu(x.requires_grad_()).sum().backward()
    np.testing.assert_array_equal(out, torch.relu(x).detach().numpy())
    assert x.grad is not None
    np.testing.assert_array_equal(gradient, x.grad.numpy())


def test_the_mask_of_relu_keeps_its_sharding():
    mesh = make_mesh(MeshShape(tensor=2))
    sharding = NamedSharding(mesh, PartitionSpec(None, "tensor"))
    x = jax.device_put(np.random.default_rng(0).normal(size=(64, 1024)).astype("f"), sharding)
    jm = to_jax(nn.ReLU())
    gradient = jax.jit(jax.grad(lambda x: jnp.square(jm.apply({}, {}, x)[0]).sum()))
    program = str(gradient.lower(x).compile().as_text())
    assert "jaxsr_stored" in program and "all-gather" not in program
    np.testing.assert_array_equal(gradient(x), 2 * np.maximum(np.asarray(x), 0))


def test_calls_of_all_threads_take_turns():
    active, most = 0, 0

    @torch_calls.torch_kernel("test_taking_turns")
    def kernel(inputs, outputs, options):
        nonlocal active, most
        active += 1
        most = max(most, active)
        time.sleep(0.02)
        active -= 1

    def call(x):
        return torch_calls.torch_call(
            kernel, x, shape=x.shape, axes=("n", "n"), channels_last=(False, False)
        )

    x = jnp.zeros((2, 3))
    run = jax.jit(lambda x: [call(x + i) for i in range(6)])
    threads = [threading.Thread(target=lambda: jax.block_until_ready(run(x))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == max(1, torch_calls.TORCH_THREADS // torch_calls.threads_per_call())
