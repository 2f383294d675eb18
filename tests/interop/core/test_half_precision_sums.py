"""Gradients of values that are broadcast or copied, in half precision: as exact as torch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop import to_jax

X = (64, 8, 8, 8)
INDEX = torch.arange(1000) % 5
CASES = {
    "mul": (lambda p, x: x * p, (8,)),
    "sub": (lambda p, x: x - p, ()),
    "where": (lambda p, x: torch.where(x > 0, x, p), (8,)),
    "maximum": (lambda p, x: torch.maximum(x, p), ()),
    "lerp": (lambda p, x: torch.lerp(x, p.expand_as(x), 0.3), ()),
    "in place": (lambda p, x: x.clone().mul_(p), (8,)),
    "sum": (lambda p, x: p.sum() * x, (100,)),
    "variance": (lambda p, x: p.var() * x, (100,)),
    "expand": (lambda p, x: p.expand(X) * x, (1, 8, 8, 8)),
    "repeat": (lambda p, x: p.repeat(64, 1, 1, 1) * x, (1, 8, 8, 8)),
    "linear": (lambda p, x: F.linear(x, torch.eye(8, dtype=x.dtype), p), (8,)),
    "addmm": (lambda p, x: torch.addmm(p, x.reshape(-1, 8), torch.eye(8, dtype=x.dtype)), (8,)),
    "baddbmm": (
        lambda p, x: torch.baddbmm(p, x.reshape(-1, 8, 8), x.reshape(-1, 8, 8), beta=0.6),
        (),
    ),
    "group_norm": (lambda p, x: F.group_norm(x, 2, p), (8,)),
    "mse": (lambda p, x: F.mse_loss(p.expand_as(x), x) * 100, (8,)),
    "index": (lambda p, x: p[INDEX] * x.reshape(-1)[:1000, None], (5, 8)),
    "gather": (lambda p, x: p.gather(0, INDEX[:, None].expand(1000, 8)), (5, 8)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_as_exact_as_torchs(name, dtype):
    function, shape = CASES[name]

    class Net(nn.Module):
        def __init__(self, p: torch.Tensor) -> None:
            super().__init__()
            self.p = nn.Parameter(p)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(self.p, x)

    torch.manual_seed(0)
    p, x = torch.randn(shape).to(dtype), torch.randn(X).to(dtype)
    cotangent = torch.randn(function(p, x).shape).to(dtype)
    converted = to_jax(Net(p.clone()))
    inputs, weights = (jnp.asarray(t.float().numpy()) for t in (x, cotangent))

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        out, _ = converted.apply(params, converted.buffers, inputs.astype(str(dtype)[6:]))
        return (out.astype(jnp.float32) * weights).sum()

    ours = np.asarray(jax.jit(jax.grad(loss))(converted.params)["p"].astype(jnp.float32))
    theirs, exact = (_gradient(function, p, x, cotangent, d) for d in (dtype, torch.float64))
    largest = np.abs(exact).max()
    error, torch_error = (np.abs(value - exact).max() / largest for value in (ours, theirs))
    assert error <= 2 * torch_error + torch.finfo(dtype).eps / 4


def _gradient(function, p, x, cotangent, dtype) -> np.ndarray:
    p = p.detach().to(dtype).requires_grad_()
    product = function(p, x.to(dtype)) * cotangent.to(dtype)
    (product.float() if dtype != torch.float64 else product).sum().backward()
    return p.grad.double().numpy()
