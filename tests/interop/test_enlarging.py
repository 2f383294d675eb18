"""Bilinear interpolation and its gradient on CPUs, against torch in every mode of derivation."""

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.interop._enlarging import table_of

# extents, what to ask of torch, whether the fast form applies
CASES = {
    "twice, corners": ((5, 7), {"scale_factor": 2, "align_corners": True}),
    "twice": ((5, 7), {"scale_factor": 2}),
    "eight times, corners": ((3, 2), {"scale_factor": 8, "align_corners": True}),
    "three and two times": ((4, 6), {"size": (12, 12)}),
    "one axis alone": ((4, 6), {"size": (4, 18), "align_corners": True}),
    "one pixel": ((1, 4), {"scale_factor": 2}),
    "a fraction": ((5, 7), {"size": (7, 9)}),
    "smaller": ((8, 6), {"scale_factor": 0.5}),
    "smaller and larger": ((8, 6), {"size": (4, 12)}),
}


class Interpolate(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return nn.functional.interpolate(x, mode="bilinear", **self.options)


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request):
    extents, options = request.param
    module = Interpolate(options)
    model = to_jax(module)
    x = np.random.default_rng(0).standard_normal((2, 3, *extents), np.float32)
    return module, lambda x: model.apply({}, {}, x)[0], x


def close(ours, theirs):
    # Sums of up to 2 × 8² products of values of some units.
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_values_and_gradients(case):
    theirs, ours, x = case
    tensor = torch.from_numpy(x).requires_grad_()
    out = theirs(tensor)
    ct = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
    out.backward(torch.from_numpy(ct))
    value, pullback = jax.vjp(ours, x)
    close(value, out)
    assert tensor.grad is not None
    close(jax.jit(pullback)(ct)[0], tensor.grad)


def test_gradient_within_a_jitted_program(case):
    theirs, ours, x = case
    # Twice nested, as in a training step: traced linear maps must stay transposable.
    loss_of = jax.jit(lambda x: (jax.jit(ours)(x) ** 2).sum())
    value, gradient = jax.jit(jax.value_and_grad(loss_of))(x)
    tensor = torch.from_numpy(x).requires_grad_()
    loss = (theirs(tensor) ** 2).sum()
    loss.backward()
    assert float(value) == pytest.approx(loss.item(), rel=1e-5)
    assert tensor.grad is not None
    close(gradient, tensor.grad)


def test_forward_mode_second_derivatives_and_each_sample(case):
    theirs, ours, x = case
    moved = np.roll(x, 1)
    _, tangent = jax.jvp(ours, (x,), (moved,))
    close(tangent, theirs(torch.from_numpy(moved)))

    def size(run):
        return lambda x: (run(x) ** 3).mean()

    wanted = torch.func.grad(lambda x: (torch.func.grad(size(theirs))(x) ** 2).sum())
    got = jax.grad(lambda x: (jax.grad(size(ours))(x) ** 2).sum())(x)
    close(got, wanted(torch.from_numpy(x)))
    each = jax.vmap(jax.grad(size(ours)))(x[:, None])[:, 0]
    close(each / len(x), torch.func.grad(size(theirs))(torch.from_numpy(x)))


def test_bfloat16_sums_in_float32(case):
    theirs, ours, x = case
    out = theirs(torch.from_numpy(x))
    _, pullback = jax.vjp(ours, jax.numpy.asarray(x, jax.numpy.bfloat16))
    tensor = torch.from_numpy(x).requires_grad_()
    theirs(tensor).backward(torch.ones_like(out))
    (got,) = pullback(jax.numpy.ones(out.shape, jax.numpy.bfloat16))
    assert tensor.grad is not None
    np.testing.assert_allclose(got.astype(np.float32), tensor.grad, rtol=2**-7)


def test_other_forms_have_no_table():
    index, weight = np.array([[0, 3], [1, 2], [2, 3], [3, 3]]), np.full((4, 2), 0.5)
    assert table_of(index, weight, 4) is None  # reads further than its neighbours
    assert table_of(index[:3], weight[:3], 4) is None  # shrinks
