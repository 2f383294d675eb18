"""Scaled dot-product attention against torch."""

import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import NamedSharding, PartitionSpec
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from jaxsr.interop import to_jax
from jaxsr.interop.lowerings.dot_product_attention import attention
from jaxsr.interop.mesh import MeshShape, make_mesh


class Attention(nn.Module):
    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def test_grouped_queries_with_other_heads_for_keys_than_for_values():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, h, 5, 8)).astype(np.float32) for h in (4, 2, 4)]
    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]
    expected = Attention()(*tensors)
    expected.sin().sum().backward()
    module = to_jax(Attention())

    def loss(*arrays):
        output = module.apply({}, {}, *arrays)[0]
        return jnp.sin(output).sum(), output

    gradients, output = jax.grad(loss, (0, 1, 2), has_aux=True)(*arrays)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-6)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(gradient, tensor.grad, atol=1e-5)


@pytest.mark.sample(3)
@pytest.mark.parametrize("heads", ["one for all", "one a head", "shared by rows"])
@pytest.mark.parametrize("kind", [bool, float])
def test_grouped_queries_with_masks(heads, kind):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn((2, 6, 5, 8), generator=generator)
    key, value = (torch.randn((2, 2, 7, 8), generator=generator) for _ in range(2))
    shape = {"one for all": (5, 7), "one a head": (2, 6, 5, 7), "shared by rows": (2, 1, 1, 7)}
    mask = torch.randn(shape[heads], generator=generator)
    mask = mask > -0.5 if kind is bool else mask

    class Grouped(nn.Module):
        def forward(self, query, key, value, mask):
            return F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)

    model = to_jax(Grouped())
    arrays = [jnp.asarray(t.numpy()) for t in (query, key, value, mask)]
    output = jax.jit(lambda *a: model.apply({}, {}, *a)[0])(*arrays)
    reference = Grouped()(query, key, value, mask).nan_to_num()
    np.testing.assert_allclose(output, reference.numpy(), rtol=0, atol=2e-6)


# ---- torch's kernel in programs for CPUs


@pytest.fixture(params=["native", "xla"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", request.param)
    return request.param


@dataclass(frozen=True)
class Case:
    """A case with 2 rows in the batch, 6 heads of queries, and 24 features."""

    keys: int = 70
    heads_of_keys: int = 6
    is_causal: bool = False
    mask: tuple[int, ...] = ()
    mask_kind: type = bool

    def arrays(self, dtype="float32"):
        rng = np.random.default_rng(0)
        of_keys = (2, self.heads_of_keys, self.keys, 24)
        shapes = [(2, 6, 60, 24), of_keys, of_keys]
        arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
        if self.mask:
            mask = rng.standard_normal(self.mask).astype(dtype)
            mask = mask > -0.5 if self.mask_kind is bool else mask
            mask[..., :1, :] = False if self.mask_kind is bool else -np.inf  # of no key
            arrays.append(mask)
        return arrays

    def of_jax(self, q, k, v, *mask):
        return attention(q, k, v, *mask, is_causal=self.is_causal, enable_gqa=True)

    def of_torch(self, q, k, v, *mask):
        # Without a kernel of its own, whose derivative torch refuses to differentiate.
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(
                q, k, v, *mask, is_causal=self.is_causal, enable_gqa=True
            )


CASES = {
    "plain": Case(),
    "causal": Case(is_causal=True),
    "causal, fewer keys": Case(keys=50, is_causal=True),
    "grouped": Case(heads_of_keys=2),
    "grouped, causal": Case(heads_of_keys=3, is_causal=True),
    "one head of keys": Case(heads_of_keys=1),
    "mask": Case(mask=(60, 70)),
    "mask of numbers": Case(mask=(2, 1, 60, 70), mask_kind=float),
    "mask of heads": Case(mask=(6, 60, 70), mask_kind=float),
    "grouped, mask of heads": Case(heads_of_keys=2, mask=(2, 6, 60, 70)),
    "grouped, mask of rows": Case(heads_of_keys=2, mask=(2, 1, 60, 70)),
    "mask of queries": Case(mask=(2, 1, 60, 1)),
}


def _assert_close(actual, expected, of_largest=2e-6):
    expected = expected.detach().numpy()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=of_largest * scale)


def _tensors(arrays, dtype=torch.float64):
    tensors = [torch.from_numpy(a) for a in arrays]
    return [t if t.dtype == torch.bool else t.to(dtype) for t in tensors]


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_float64(kernels, name):
    case = CASES[name]
    arrays = case.arrays()
    tensors = _tensors(arrays)
    for tensor in tensors[:3]:
        tensor.requires_grad_()
    out = case.of_torch(*tensors)
    g = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
    out.nan_to_num().backward(torch.from_numpy(g).double())

    def with_gradients(*arrays):
        value, pullback = jax.vjp(lambda *a: case.of_jax(*a, *arrays[3:]), *arrays[:3])
        return value, *pullback(g)

    program = jax.jit(with_gradients)
    results: list[Any] = [out, *(tensor.grad for tensor in tensors[:3])]
    for actual, expected in zip(program(*arrays), results, strict=True):
        _assert_close(actual, expected.nan_to_num())
    calls = program.lower(*arrays).as_text().count("custom_call @jaxsr_attention")
    assert calls == (2 if kernels == "native" else 0)


def test_float64(kernels):
    case = CASES["grouped, causal"]
    arrays = case.arrays("float64")
    with jax.enable_x64(True):
        out, pullback = jax.vjp(case.of_jax, *arrays)
        gradients = pullback(jnp.ones_like(out))
    tensors = [t.requires_grad_() for t in _tensors(arrays)]
    expected = case.of_torch(*tensors)
    expected.sum().backward()
    for actual, reference in zip(
        (out, *gradients), (expected, *(t.grad for t in tensors)), strict=True
    ):
        assert reference is not None
        _assert_close(actual, reference, 1e-13)


DERIVED = ["causal", "grouped, mask of heads", "mask of heads"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", DERIVED)
def test_forward_mode(kernels, name):
    case = CASES[name]
    arrays, mask = case.arrays()[:3], case.arrays()[3:]
    tangents = [np.roll(a, 1) for a in arrays]
    _, actual = jax.jvp(lambda *a: case.of_jax(*a, *mask), tuple(arrays), tuple(tangents))
    torch_mask = _tensors(mask)
    _, expected, *_ = torch.func.jvp(
        lambda *a: case.of_torch(*a, *torch_mask),
        tuple(_tensors(arrays)),
        tuple(_tensors(tangents)),
    )
    _assert_close(actual, expected.nan_to_num())


@pytest.mark.sample(1)
def test_gradient_of_a_gradient(kernels):
    case = CASES["grouped, causal"]

    def size(function, of, cube):
        return lambda *a: (of(lambda *b: cube(function(*b)), 1)(*a) ** 2).sum()

    arrays = case.arrays()
    loss = size(case.of_jax, jax.grad, lambda x: (x**3).sum())
    of_torch = size(case.of_torch, torch.func.grad, lambda x: (x**3).sum())
    actual = jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)
    expected = torch.func.grad(of_torch, (0, 1, 2))(*_tensors(arrays))
    for one, other in zip(actual, expected, strict=True):
        _assert_close(one, other, 5e-6)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["mask of numbers", "grouped, mask of rows", "mask"])
@pytest.mark.parametrize("mapped", [(0, None, 1, None), (None, 2, None, 0), (1, 0, 0, 1)], ids=str)
def test_vmap_of_the_result_and_of_its_gradients(name, mapped):
    case = CASES[name]
    stacks = [
        a if axis is None else np.stack([a, np.roll(a, 1, -1), np.roll(a, 2, -1)], axis)
        for a, axis in zip(case.arrays(), mapped, strict=True)
    ]

    def with_gradients(*arrays):
        value, pullback = jax.vjp(lambda *a: case.of_jax(*a, *arrays[3:]), *arrays[:3])
        return value, *pullback(jnp.sin(value))

    program = jax.jit(jax.vmap(with_gradients, mapped))
    assert "custom_call @jaxsr_attention" in program.lower(*stacks).as_text()
    together = program(*stacks)
    for i in range(3):
        arrays = [
            a if axis is None else a.take(i, axis) for a, axis in zip(stacks, mapped, strict=True)
        ]
        for one, other in zip(together, jax.jit(with_gradients)(*arrays), strict=True):
            np.testing.assert_allclose(one[i], other, rtol=0, atol=1e-5)


def test_scan_and_remat():
    case = CASES["causal"]
    q, k, v = case.arrays()

    def loss(q):
        layer = jax.checkpoint(lambda x: jnp.tanh(case.of_jax(x, k, v)))
        return jax.lax.scan(lambda x, _: (layer(x), None), q, None, length=3)[0].sum()

    def torch_loss(x):
        _, *rest = _tensors((q, k, v))
        for _ in range(3):
            x = torch.tanh(case.of_torch(x, *rest))
        return x.sum()

    _assert_close(jax.jit(jax.grad(loss))(q), torch.func.grad(torch_loss)(_tensors([q])[0]))


def test_a_bias_of_the_scores_has_a_gradient():
    """Swin's relative positions: what torch computes without its kernel, too."""

    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.from_numpy(CASES["mask of heads"].arrays()[3]))
            nn.init.normal_(self.bias)

        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, self.bias)

    module, arrays = Biased(), CASES["mask of heads"].arrays()[:3]
    jm = to_jax(module)
    gradient = jax.jit(jax.grad(lambda p: jnp.sin(jm.apply(p, {}, *arrays)[0]).sum()))(jm.params)
    module = module.double()
    module(*_tensors(arrays)).sin().sum().backward()
    assert module.bias.grad is not None
    _assert_close(gradient["bias"], module.bias.grad)

    def of_mask(mask):
        q, k, v = arrays
        return jnp.sin(attention(q, k, v, mask)).sum()  # without `mask_needs_grad`

    _assert_close(jax.grad(of_mask)(jm.params["bias"]), module.bias.grad)


# ---- on a mesh

COLLECTIVE = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


@pytest.mark.sample(3)
@pytest.mark.parametrize("axes", [{"data": 2}, {"tensor": 2}, {"data": 2, "tensor": 2}], ids=str)
@pytest.mark.parametrize("name", ["grouped, mask of heads", "grouped, mask of rows", "mask"])
def test_each_device_attends_in_its_rows_and_heads(axes, name, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "native")
    case = CASES[name]
    arrays = case.arrays()
    mesh = make_mesh(MeshShape(**axes))
    rows, heads = ("data" if "data" in axes else None), ("tensor" if "tensor" in axes else None)
    placed = [
        jax.device_put(a, NamedSharding(mesh, PartitionSpec(rows, heads))) for a in arrays[:3]
    ]
    placed += [jax.device_put(a, NamedSharding(mesh, PartitionSpec())) for a in arrays[3:]]

    def with_gradients(*arrays):
        value, pullback = jax.vjp(lambda *a: case.of_jax(*a, *arrays[3:]), *arrays[:3])
        return value, *pullback(jnp.sin(value))

    program = jax.jit(with_gradients).lower(*placed).compile()
    text = str(program.as_text())
    assert text.count('custom_call_target="jaxsr_attention') == 2
    assert not re.findall(COLLECTIVE, text)
    for one, other in zip(program(*placed), jax.jit(with_gradients)(*arrays), strict=True):
        assert one.sharding.spec[:2] == (rows, heads) or one.sharding.spec[:1] == (rows,)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_shard_map():
    case = CASES["mask of numbers"]
    arrays = case.arrays()
    rows = PartitionSpec("data")

    def gradients(q, k, v, mask):
        return jax.grad(lambda *a: jnp.sin(case.of_jax(*a, mask)).sum(), (0, 1, 2))(q, k, v)

    each = jax.shard_map(gradients, mesh=make_mesh(2), in_specs=rows, out_specs=rows)
    for one, other in zip(jax.jit(each)(*arrays), gradients(*arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_programs_for_accelerators_hold_products_of_the_precision_asked_for():
    case = CASES["causal"]
    arrays = case.arrays()

    @jax.jit  # traced as a whole: derivatives are taken when the precision is another one again
    def attend(*arrays):
        with jax.default_matmul_precision("highest"):
            return case.of_jax(*arrays)

    traced = jax.jit(jax.grad(lambda *a: jnp.sin(attend(*a)).sum(), (0, 1, 2))).trace(*arrays)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "jaxsr_attention" not in text
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products
    assert all(line.count("HIGHEST") == 2 for line in products)
