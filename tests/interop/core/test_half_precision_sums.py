"""Gradients of values that are broadcast or copied, in half precision: as exact as torch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop import to_jax
from tests.interop.core.function_net import FunctionNet

X = (64, 8, 8, 8)
INDEX = torch.arange(1000) % 5


def recurrent(function, states, p, x):
    """The outputs of a layer of 64 steps whose weights and biases are `p`."""
    start = (x.new_zeros(1, 64, 8),) * states
    weights = [p, p, p[:, 0], p[:, 1]]
    options = (True, 1, 0.0, False, False, False)  # biases, layers, dropout, and three switches
    start = start if states > 1 else start[0]
    return function(x.reshape(64, 64, 8), start, weights, *options)[0]


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
    "lstm": (lambda p, x: recurrent(torch.lstm, 2, p, x), (32, 8)),
    "gru": (lambda p, x: recurrent(torch.gru, 1, p, x), (24, 8)),
    "mse": (lambda p, x: F.mse_loss(p.expand_as(x), x) * 100, (8,)),
    "index": (lambda p, x: p[INDEX] * x.reshape(-1)[:1000, None], (5, 8)),
    "gather": (lambda p, x: p.gather(0, INDEX[:, None].expand(1000, 8)), (5, 8)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("name", "is_input"),
    [*((name, False) for name in CASES), *((name, True) for name in ("mul", "sub", "where"))],
)
def test_sums_are_as_exact_as_torchs(name, is_input, dtype):
    function, shape = CASES[name]

    class Net(nn.Module):
        def __init__(self, p: torch.Tensor) -> None:
            super().__init__()
            self.p = nn.Parameter(p)

        def forward(self, x: torch.Tensor, p: torch.Tensor | None = None) -> torch.Tensor:
            return function(self.p if p is None else p, x)

    torch.manual_seed(0)
    p, x = torch.randn(shape).to(dtype), torch.randn(X).to(dtype)
    cotangent = torch.randn(function(p, x).shape).to(dtype)
    converted = to_jax(Net(p.clone()))
    inputs, weights = (jnp.asarray(t.float().numpy()) for t in (x, cotangent))

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        others = (params["p"],) if is_input else ()
        out, _ = converted.apply(
            converted.params if is_input else params,
            converted.buffers, inputs.astype(str(dtype)[6:]), *others,
        )  # fmt: skip
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


SUMS = {
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: (x * 0.01 + 1).cumprod(0),
    "avg_pool2d": lambda x: F.avg_pool2d(x.reshape(1, 1, 64, 64), 16),
    "lp_pool2d": lambda x: F.lp_pool2d(x.abs().reshape(1, 1, 64, 64), 2.0, 16),
    "scatter_add": lambda x: x.new_zeros(5).scatter_add(0, torch.arange(4096) % 5, x),
    "scatter_reduce": lambda x: x.new_zeros(5).scatter_reduce(
        0, torch.arange(4096) % 5, x, "mean", include_self=False
    ),
    "index_add": lambda x: x.new_zeros(5).index_add(0, torch.arange(4096) % 5, x),
    "index_put": lambda x: x.new_zeros(5).index_put((torch.arange(4096) % 5,), x, True),
    "segment_reduce": lambda x: torch.segment_reduce(
        x, "mean", lengths=torch.tensor([96, 4000]), unsafe=True
    ),
    # Beyond 256 and 2048 elements, numbers in half precision count no further.
    "embedding_bag": lambda x: F.embedding_bag(torch.arange(4096)[None], x[:, None], mode="mean"),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_values_are_as_exact_as_torchs(name, dtype):
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return SUMS[name](x)

    torch.manual_seed(0)
    x = torch.randn(4096).to(dtype)
    ours, _ = to_jax(Net()).apply({}, {}, jnp.asarray(x.float().numpy()).astype(str(dtype)[6:]))
    exact = SUMS[name](x.double()).numpy()
    largest = np.abs(exact).max()
    error = np.abs(np.asarray(ours.astype(jnp.float32)) - exact).max() / largest
    torch_error = np.abs(SUMS[name](x).double().numpy() - exact).max() / largest
    assert error <= 2 * torch_error + torch.finfo(dtype).eps / 4


def test_frequencies_of_an_embedding_are_counted_beyond_256():
    table = torch.ones(2, 1, dtype=torch.bfloat16)
    index = torch.zeros(1000, dtype=torch.long)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(table.clone())

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return F.embedding(index, self.table, scale_grad_by_freq=True).float().sum()

    net = Net()
    net(index).backward()
    assert net.table.grad is not None
    converted = to_jax(net)
    gradient = jax.grad(lambda p: converted.apply(p, {}, jnp.asarray(index.numpy()))[0])(
        converted.params
    )["table"]
    expected = net.table.grad.float().numpy()
    np.testing.assert_allclose(np.asarray(gradient.astype(jnp.float32)), expected, rtol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_beside_half_precision_are_rounded_as_torchs(dtype):
    def chain(x):
        half = x.to(dtype)
        return torch.stack(
            [
                half * 0.1767767, half + 0.3, 3.3 - half, half / 0.3, half - 1e4,
                half * torch.tensor(0.7), half.clone().mul_(0.7), half * 3,
            ]
        ).float()  # fmt: skip

    x = torch.from_numpy(np.random.default_rng(0).standard_normal(500).astype(np.float32))
    module = to_jax(FunctionNet(lambda _, x: chain(x)))
    got = jax.jit(lambda x: module.apply({}, {}, x)[0])(x.numpy())
    np.testing.assert_array_equal(got, chain(x))
