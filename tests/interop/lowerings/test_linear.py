"""F.linear's gradients against float64 torch."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.interop.lowerings.linear import linear
from jaxsr.interop.mesh import MeshShape, make_mesh


def test_a_bias_behind_equal_rows_has_an_exact_gradient():
    """Zero-padded windows, as in SAM 2's Hiera: 180 of each image's 196 gradients are the same."""
    rng = np.random.default_rng(0)
    gradient = np.empty((2, 14, 14, 1152), np.float32)
    gradient[:] = rng.standard_normal(1152)
    gradient[:, :4, :4] = rng.standard_normal((2, 4, 4, 1152))
    jm = to_jax(nn.Linear(4, 1152))

    def apply(params):
        return jm.apply(params, {}, np.zeros((2, 14, 14, 4), np.float32))[0]

    actual = jax.jit(lambda params: jax.vjp(apply, params)[1](gradient)[0])(jm.params)["bias"]
    rows = torch.from_numpy(gradient).reshape(-1, 1152)
    exact = rows.double().sum(0).numpy()
    step = np.abs(exact).max() * 2**-23
    assert np.abs(rows.sum(0).numpy() - exact).max() < 4 * step
    np.testing.assert_allclose(actual, exact, rtol=0, atol=4 * step)


def test_forward_mode_and_vmap_pass_a_large_bias():
    jm = to_jax(nn.Linear(4, 1152))
    x = np.random.default_rng(0).standard_normal((3, 256, 4)).astype(np.float32)
    tangents = {name: np.ones_like(array) for name, array in jm.params.items()}
    out, change = jax.jvp(lambda p: jm.apply(p, {}, x)[0], (jm.params,), (tangents,))
    np.testing.assert_allclose(
        change, np.broadcast_to(x.sum(-1, keepdims=True) + 1, out.shape), atol=1e-5
    )
    mapped = jax.vmap(lambda x: jm.apply(jm.params, {}, x)[0])(np.stack([x, x]))
    np.testing.assert_allclose(mapped[1], out, atol=1e-6)


# ---- the gradient of a weight


@pytest.fixture(params=["native", "xla"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", request.param)
    return request.param


def _arrays(leading, dtype="float32") -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in ((*leading, 96), (160, 96))]


def _assert_close(actual, expected, of_largest=3e-6):
    expected = expected.detach().numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=of_largest * np.abs(expected).max())


@pytest.mark.parametrize("leading", [(400,), (4, 100), (2, 3, 70), (0,), (7,)], ids=str)
def test_gradients_are_those_of_float64(kernels, leading):
    x, weight = _arrays(leading)
    g = np.random.default_rng(1).standard_normal((*leading, 160)).astype(np.float32)
    program = jax.jit(lambda x, weight, g: jax.vjp(linear, x, weight)[1](g))
    tensors = [torch.from_numpy(a).double().requires_grad_() for a in (x, weight)]
    F.linear(*tensors).backward(torch.from_numpy(g).double())
    for actual, tensor in zip(program(x, weight, g), tensors, strict=True):
        assert tensor.grad is not None
        if tensor.grad.numel():
            _assert_close(actual, tensor.grad)
    is_called = "custom_call @jaxsr_linear_weight" in program.lower(x, weight, g).as_text()
    assert is_called == (kernels == "native" and np.prod(leading) > 100)


def test_float64_and_mixed_dtypes():
    x, weight = _arrays((400,), "float64")
    with jax.enable_x64(True):
        gradient = jax.grad(lambda w: linear(x, w).sum())(weight)
        assert linear(x.astype(np.float32), weight).dtype == np.float64
    np.testing.assert_allclose(gradient, np.broadcast_to(x.sum(0), gradient.shape), atol=1e-11)


def test_derivatives_of_any_order(kernels):
    x, weight = _arrays((4, 100))
    tensors = [torch.from_numpy(a).double() for a in (x, weight)]

    def loss(function, of, sine):
        def size(*arrays):
            gradients = of(lambda *a: sine(function(*a)).sum(), (0, 1))(*arrays)
            return sum((gradient**2).sum() for gradient in gradients)

        return size

    actual = jax.jit(jax.grad(loss(linear, jax.grad, jnp.sin), (0, 1)))(x, weight)
    of_torch = loss(F.linear, torch.func.grad, torch.sin)
    for one, other in zip(actual, torch.func.grad(of_torch, (0, 1))(*tensors), strict=True):
        _assert_close(one, other, 1e-5)
    tangents = np.roll(x, 1), np.roll(weight, 1)
    _, expected, *_ = torch.func.jvp(
        F.linear, tuple(tensors), tuple(torch.from_numpy(a).double() for a in tangents)
    )
    _assert_close(jax.jvp(linear, (x, weight), tangents)[1], expected)
    _assert_close(
        jax.jvp(lambda w: linear(x, w), (weight,), tangents[1:])[1],
        F.linear(tensors[0], torch.from_numpy(tangents[1]).double()),
    )


@pytest.mark.parametrize("axes", [{"data": 2}, {"tensor": 2}, {"data": 2, "tensor": 2}], ids=str)
def test_each_device_sums_its_rows(axes, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "native")
    x, weight = _arrays((8, 100))
    mesh = make_mesh(MeshShape(**axes))
    rows, outputs = ("data" if "data" in axes else None), ("tensor" if "tensor" in axes else None)
    placed = [
        jax.device_put(x, NamedSharding(mesh, PartitionSpec(rows))),
        jax.device_put(weight, NamedSharding(mesh, PartitionSpec(outputs))),
    ]
    step = jax.jit(jax.grad(lambda w, x: jnp.sin(linear(x, w)).sum()))
    program = step.lower(placed[1], placed[0]).compile()
    text = str(program.as_text())
    assert text.count('custom_call_target="jaxsr_linear_weight') == 1
    collectives = re.findall(r" (all-[a-z]+|collective-permute|reduce-scatter)(?:-start)?\(", text)
    assert collectives == (["all-reduce"] if "data" in axes else [])
    np.testing.assert_allclose(program(placed[1], placed[0]), step(weight, x), rtol=0, atol=2e-3)


def test_programs_for_accelerators_hold_a_product_of_the_precision_asked_for():
    x, weight = _arrays((400,))

    @jax.jit  # traced as a whole: derivatives are taken when the precision is another one again
    def layer(weight):
        with jax.default_matmul_precision("highest"):
            return linear(x, weight)

    traced = jax.jit(jax.grad(lambda w: jnp.sin(layer(w)).sum())).trace(weight)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "jaxsr_linear_weight" not in text
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 2
    assert all(line.count("HIGHEST") == 2 for line in products)
