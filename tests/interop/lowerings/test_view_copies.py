"""`torch.view_copy` and its kin, of tensors whose memory is not in order."""

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax

CASES = {
    "as_strided of a transpose": lambda x: torch.as_strided_copy(x.t(), (2, 3), (1, 2), 1),
    "as_strided of a product": lambda x: torch.as_strided_copy(x.t() * 2, (2, 2), (1, 3)),
    "as_strided of a part": lambda x: torch.as_strided_copy(x[1:], (2, 2), (2, 1), 3),
    "as_strided beyond a part": lambda x: torch.as_strided_copy(x[1:, 1:3], (3, 2), (3, 1), 2),
    "as_strided of a row": lambda x: torch.as_strided(x[1], (2, 4), (4, 1), 0) * x[1].sum(),
    "as_strided of a view of a view": lambda x: x[:, 1:][1:].t().as_strided((4,), (2,), 1) + 1,
    "unfold": lambda x: torch.unfold_copy(x.t(), 0, 2, 1),
    "diagonal": lambda x: torch.diagonal_copy(x.t(), 1),
    "split": lambda x: torch.stack(torch.split_copy(x.t(), 2)),  # pyright: ignore
    "view": lambda x: torch.view_copy(x * 2, (2, 6)),
    "expand": lambda x: torch.expand_copy(x.t()[None], (2, 4, 3)),
    # Without arithmetic of complex numbers, which XLA rounds otherwise.
    "view_as_complex": lambda x: torch.view_as_real(torch.view_as_complex_copy(x.reshape(3, 2, 2))),
}


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        copy = self.function(x)
        x.mul_(0)  # which the copy does not see
        return copy


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    module = Function(CASES[name])
    got = to_jax(module).apply({}, {}, x)[0]
    np.testing.assert_array_equal(got, module(torch.from_numpy(x.copy())))
    if name == "view_as_complex":
        return  # torch has no gradient
    leaf = torch.from_numpy(x).requires_grad_()
    CASES[name](leaf * 1).square().sum().backward()
    slope = jax.grad(lambda x: (to_jax(module).apply({}, {}, x)[0] ** 2).sum())(x)
    np.testing.assert_allclose(slope, np.asarray(leaf.grad), rtol=1e-6)
