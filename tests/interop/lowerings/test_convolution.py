"""Convolutions in the forms of `lowerings/convolution.py`, against torch."""

import dataclasses
import functools
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
from jaxsr.interop.folding.policy import CHANNELS_LAST, LaneFolding
from jaxsr.interop.lowerings.convolution import convolution
from jaxsr.interop.mesh import make_mesh

# An axis of two taps at stride 2 beside one with more taps than pixels.
STRIDED = functools.partial(nn.Conv2d, 4, 5, (3, 2), stride=2, padding=1)
COMPILER_CRASHES = {
    "strided": (STRIDED, (1, 4, 4, 4), None),
    "strided, channels last": (STRIDED, (1, 4, 4, 4), CHANNELS_LAST),
    "strided, folded": (
        functools.partial(nn.Conv2d, 4, 5, (2, 3), stride=2, padding=1),
        (1, 4, 4, 4),
        LaneFolding({8: 4}, fewest_lanes=1),
    ),
    "strided, three axes": (
        functools.partial(nn.Conv3d, 2, 3, (3, 2, 2), stride=2, padding=1),
        (1, 2, 4, 4, 6),
        None,
    ),
    "transposed": (
        functools.partial(nn.ConvTranspose2d, 4, 5, (3, 2), stride=2, padding=1),
        (1, 4, 2, 3),
        None,
    ),
    "transposed, bfloat16": (
        functools.partial(nn.ConvTranspose2d, 4, 5, (5, 2), stride=2, padding=(0, 1)),
        (2, 4, 2, 3),
        None,
    ),
    "transposed, its weights": (
        functools.partial(nn.ConvTranspose2d, 4, 5, (3, 4), stride=2, padding=(1, 3)),
        (1, 4, 2, 3),
        None,
    ),
}


@pytest.mark.parametrize("name", COMPILER_CRASHES)
def test_shapes_at_which_xla_ends_the_process(name, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    torch.manual_seed(0)
    make, shape, folding = COMPILER_CRASHES[name]
    convolution = make()
    dtype = jnp.dtype("bfloat16") if "bfloat16" in name else None
    x = torch.randn(shape, requires_grad=True)
    expected = convolution(x)
    expected.square().sum().backward()
    model = to_jax(convolution, lane_folding=folding, compute_dtype=dtype)

    def loss(params, x):
        y = model.apply(params, {}, x)[0].astype(jnp.float32)
        return (y**2).sum(), y

    run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    (grads, into_x), y = run(model.params, jnp.asarray(x.detach().numpy()))
    assert x.grad is not None
    rtol, atol = (1e-5, 1e-4) if dtype is None else (2e-2, 0.2)
    np.testing.assert_allclose(y, expected.detach(), rtol, atol)
    np.testing.assert_allclose(into_x, x.grad, rtol, atol)
    for weight, parameter in convolution.named_parameters():
        np.testing.assert_allclose(grads[weight], parameter.grad, rtol, atol)


# ---- every mode of differentiation, by torch's kernels and by XLA's


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution of 2 images; `inputs`, `outputs` are channels."""

    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    extra: int | None = None
    """Output padding of a transposed convolution."""

    def arrays(self) -> tuple[Any, Any, Any]:
        """Images, weight, and the arguments after them that torch takes."""
        rng = np.random.default_rng(0)
        n = len(self.kernel)
        image = rng.standard_normal((2, self.inputs, *(9, 8, 7)[:n]), np.float32)
        channels = (self.outputs, self.inputs // self.groups)
        if self.extra is not None:
            channels = (self.inputs, self.outputs // self.groups)
        weight = rng.standard_normal((*channels, *self.kernel), np.float32)
        options = ([value] * n for value in (self.stride, self.padding, self.dilation))
        transposed = self.extra is not None
        return image, weight / weight[0].size**0.5, (
            None, *options, transposed, [self.extra or 0] * n, self.groups,
        )  # fmt: skip


CASES = {
    "plain": Case(5, 6, (3, 3), padding=1),
    "one axis": Case(4, 6, (3,), stride=2, padding=1),
    "three axes": Case(4, 6, (3, 2, 2), stride=2, padding=1, groups=2),
    "one pixel": Case(3, 17, (1, 1)),
    "one pixel, padded": Case(4, 5, (1, 1), padding=2),
    "padding beyond the kernel": Case(4, 5, (3, 3), padding=4),
    "even kernel": Case(4, 6, (4, 2), padding=2),
    "strided, dilated": Case(4, 6, (3, 2), stride=2, padding=2, dilation=3),
    "pixels that no window reaches": Case(3, 4, (2, 2), stride=3),
    "grouped": Case(6, 9, (3, 3), padding=1, groups=3),
    "depthwise": Case(6, 12, (3, 3), stride=2, padding=1, groups=6),
    "transposed": Case(4, 6, (3, 4), stride=2, padding=1, extra=1),
    "transposed, grouped, dilated": Case(4, 6, (3, 2), 3, 2, 2, groups=2, extra=2),
    "transposed, one axis": Case(4, 2, (5,), stride=2, extra=0),
    "transposed, three axes": Case(2, 3, (2, 2, 3), stride=2, padding=1, extra=1),
}


DERIVED = ("plain", "strided, dilated", "grouped", "transposed, grouped, dilated")
"""Cases of derivatives beyond the first: the rules do not depend on the number of axes."""


@pytest.fixture(params=["native", "xla"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", request.param)
    return request.param


def of_jax(options):
    return jax.jit(lambda image, weight: convolution(image, weight, *options))


def of_torch(options):
    return lambda image, weight: torch.ops.aten.convolution(image, weight, *options)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.sample(9)
@pytest.mark.parametrize("case", CASES)
def test_gradients(kernels, case):
    image, weight, options = CASES[case].arrays()
    tensors = [torch.from_numpy(a).requires_grad_() for a in (image, weight)]
    out = of_torch(options)(*tensors)
    ct = torch.from_numpy(np.random.default_rng(1).standard_normal(out.shape).astype(np.float32))
    out.backward(ct)
    value, pullback = jax.vjp(of_jax(options), image, weight)
    close(value, out)
    for gradient, tensor in zip(jax.jit(pullback)(ct.numpy()), tensors, strict=True):
        close(gradient, tensor.grad)
    text = of_jax(options).lower(image, weight).as_text()
    assert ("jaxsr_convolution" in text) == (kernels == "native")


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", DERIVED)
def test_forward_mode(kernels, case):
    image, weight, options = CASES[case].arrays()
    tangents = np.roll(image, 1), np.roll(weight, 1)
    tensors = [tuple(torch.from_numpy(a) for a in pair) for pair in ((image, weight), tangents)]
    _, expected, *_ = torch.func.jvp(of_torch(options), *tensors)
    _, tangent = jax.jvp(of_jax(options), (image, weight), tangents)
    close(tangent, expected)


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", DERIVED)
def test_gradient_of_a_gradient(kernels, case):
    image, weight, options = CASES[case].arrays()

    def size(convolution, of):
        return lambda *arrays: (of(lambda *a: (convolution(*a) ** 3).mean(), 1)(*arrays) ** 2).sum()

    tensors = [torch.from_numpy(a) for a in (image, weight)]
    expected = torch.func.grad(size(of_torch(options), torch.func.grad), (0, 1))(*tensors)
    actual = jax.jit(jax.grad(size(of_jax(options), jax.grad), (0, 1)))(image, weight)
    for one, other in zip(actual, expected, strict=True):
        close(one, other)


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", DERIVED)
@pytest.mark.parametrize("mapped", [(1, 2), (0, None), (None, 0)], ids=str)
def test_vmap_of_the_result_and_of_its_gradients(case, mapped):
    image, weight, options = CASES[case].arrays()
    stacks = [
        array if axis is None else np.stack([array, np.roll(array, 1), -array], axis)
        for array, axis in zip((image, weight), mapped, strict=True)
    ]

    def with_gradients(image, weight):
        value, pullback = jax.vjp(of_jax(options), image, weight)
        return value, *pullback(jnp.sin(value))

    together = jax.jit(jax.vmap(with_gradients, mapped))(*stacks)
    for i in range(3):
        alone = jax.jit(with_gradients)(
            *(
                a if axis is None else a.take(i, axis)
                for a, axis in zip(stacks, mapped, strict=True)
            )
        )
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_allclose(one[i], other, rtol=1e-4, atol=1e-4)


def test_scan_and_remat():
    image, weight, options = Case(4, 4, (3, 3), padding=1).arrays()

    def loss(weight):
        layer = jax.checkpoint(lambda x: jnp.tanh(convolution(x, weight, *options)))
        return jax.lax.scan(lambda x, _: (layer(x), None), image, None, length=3)[0].sum()

    def torch_loss(weight):
        x = torch.from_numpy(image)
        for _ in range(3):
            x = torch.tanh(of_torch(options)(x, weight))
        return x.sum()

    close(jax.jit(jax.grad(loss))(weight), torch.func.grad(torch_loss)(torch.from_numpy(weight)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes(kernels, dtype):
    image, weight, options = CASES["plain"].arrays()
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a, dtype) for a in (image, weight)]
        value, pullback = jax.vjp(of_jax(options), *arrays)
        results = [value, *pullback(jnp.ones_like(value))]
    tensors = [torch.tensor(np.asarray(a, np.float64), requires_grad=True) for a in arrays]
    out = of_torch(options)(*tensors)
    out.sum().backward()
    tolerance = {"float64": 1e-12, "float16": 5e-3, "bfloat16": 2e-2}[dtype]
    for result, expected in zip(results, (out, *(t.grad for t in tensors)), strict=True):
        assert expected is not None
        assert result.dtype == dtype
        scale = float(expected.detach().abs().max())
        np.testing.assert_allclose(
            np.asarray(result, np.float64), expected.detach(), rtol=0, atol=tolerance * scale
        )


# ---- on a mesh

COLLECTIVE = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


@pytest.mark.parametrize("devices", [2, 4])
def test_each_device_convolves_its_rows(devices, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "native")
    image, weight, options = Case(4, 4, (3, 3), padding=1, groups=2).arrays()
    images = np.concatenate([image, -image, 2 * image, image + 1])
    mesh = make_mesh(devices)
    sharded = jax.device_put(images, NamedSharding(mesh, PartitionSpec("data")))
    placed = jax.device_put(weight, NamedSharding(mesh, PartitionSpec()))

    def loss(weight, images):
        hidden = jnp.tanh(convolution(images, weight, *options))
        return (convolution(hidden, weight, *options) ** 2).mean()

    step = jax.jit(jax.value_and_grad(loss))
    program = str(step.lower(placed, sharded).compile().as_text())
    assert program.count('custom_call_target="jaxsr_convolution') == 5
    assert set(re.findall(COLLECTIVE, program)) == {"all-reduce"}
    value, gradient = step(placed, sharded)
    expected_value, expected_gradient = step(weight, images)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_shard_map():
    image, weight, options = CASES["plain"].arrays()
    mesh = make_mesh(2)

    def gradient(weight, images):
        return jax.grad(lambda w: (convolution(images, w, *options) ** 2).sum())(weight)

    rows = PartitionSpec("data")
    each = jax.shard_map(
        gradient, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=PartitionSpec()
    )
    # Elements near zero are sums of terms to 80, each device's in an order of its own.
    np.testing.assert_allclose(
        jax.jit(each)(weight, image), gradient(weight, image), rtol=1e-4, atol=1e-5
    )


def test_rows_that_do_not_divide_evenly():
    image, weight, options = CASES["plain"].arrays()
    images = jnp.concatenate([jnp.asarray(image)] * 2)
    mesh = make_mesh(4)
    rows = NamedSharding(mesh, PartitionSpec("data"))

    @jax.jit
    def run(images, weight):
        three = jax.lax.with_sharding_constraint(images, rows)[:3]
        return convolution(three, weight, *options)

    np.testing.assert_allclose(
        run(images, weight), convolution(images[:3], weight, *options), rtol=1e-4, atol=1e-5
    )
