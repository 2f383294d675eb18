"""Products of the experts of a mixture against torch's loop over groups, forward and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop import UnsupportedTorchError, to_jax

ENDS = np.array([3, 3, 7, 8], np.int32)  # one group is empty
RNG = np.random.default_rng(0)
OPERANDS = {
    "rows of the first": ((9, 5), (4, 5, 6)),
    "columns of the second": ((4, 6, 5), (5, 9)),
    "the contracted axis": ((6, 9), (9, 5)),
    "batches": ((4, 3, 5), (4, 5, 6)),
}


class Grouped(nn.Module):
    def forward(self, a, b, ends, bias=None):
        return F.grouped_mm(a, b, offs=ends, bias=bias)


def _loop(a, b, ends):
    """Each group's product; rows behind the last group are zero."""
    if ends is None:
        return a @ b
    starts = [0, *ends[:-1]]
    groups = list(zip(starts, ends, strict=True))
    if a.dim() == 2 and b.dim() == 3:
        parts = [a[i:j] @ b[g] for g, (i, j) in enumerate(groups)]
        return torch.cat([*parts, torch.zeros(a.shape[0] - ends[-1], b.shape[2])])
    if a.dim() == 3:
        parts = [a[g] @ b[:, i:j] for g, (i, j) in enumerate(groups)]
        return torch.cat([*parts, torch.zeros(a.shape[1], b.shape[1] - ends[-1])], 1)
    return torch.stack([a[:, i:j] @ b[i:j] for i, j in groups])


@pytest.mark.parametrize("case", OPERANDS)
def test_grouped_mm(case):
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in OPERANDS[case])
    ends = None if case == "batches" else ENDS
    jm = to_jax(Grouped())

    def loss(a, b):
        out = jm.apply({}, {}, a, b, ends)[0]
        return (out**2).sum(), out

    ((_, actual), gradients) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(a, b)
    ta, tb = (torch.from_numpy(x).requires_grad_() for x in (a, b))
    expected = _loop(ta, tb, None if ends is None else ends.tolist())
    (expected**2).sum().backward()
    np.testing.assert_allclose(actual, expected.detach(), atol=1e-5)
    assert ta.grad is not None
    np.testing.assert_allclose(gradients[0], ta.grad, atol=1e-4)
    assert tb.grad is not None
    np.testing.assert_allclose(gradients[1], tb.grad, atol=1e-4)


def test_bfloat16_equals_torchs_own():
    a, b = (
        torch.from_numpy(RNG.standard_normal(shape)).bfloat16() for shape in ((8, 16), (4, 16, 8))
    )
    expected = F.grouped_mm(a, b, offs=torch.from_numpy(ENDS))
    arrays = [jnp.asarray(x.float().numpy(), jnp.bfloat16) for x in (a, b)]
    actual = to_jax(Grouped()).apply({}, {}, *arrays, ENDS)[0]
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(actual.astype(np.float32), expected.float(), rtol=2**-7, atol=2**-7)


def test_it_is_a_grouped_product():
    a, b = np.zeros((9, 5), np.float32), np.zeros((4, 5, 6), np.float32)
    jm = to_jax(Grouped())
    assert "ragged_dot" in str(jax.make_jaxpr(lambda *x: jm.apply({}, {}, *x)[0])(a, b, ENDS))


def test_unequal_dtypes_are_refused():
    a, b = np.zeros((9, 5), np.float32), np.zeros((4, 5, 6), np.float16)
    with pytest.raises(UnsupportedTorchError, match=r"grouped_mm of .*give equal dtypes"):
        to_jax(Grouped()).apply({}, {}, a, b, ENDS)


def test_the_fallback_of_transformers():
    pytest.importorskip("transformers.integrations.moe")
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((8, 5), (4, 5, 6)))
    ends = np.array([3, 3, 7, 8])

    class Fallback(nn.Module):
        def forward(self, a, b, ends):
            return torch.ops.transformers.grouped_mm_fallback(a, b, ends)

    jm = to_jax(Fallback())
    actual = jax.jit(lambda *x: jm.apply({}, {}, *x)[0])(a, b, ends)
    expected = torch.ops.transformers.grouped_mm_fallback(
        *(torch.from_numpy(x) for x in (a, b, ends))
    )
    np.testing.assert_allclose(actual, expected, atol=1e-5)
