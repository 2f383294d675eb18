"""Second derivatives where first ones are zero, jump or are found apart, against float64 torch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop import to_jax
from tests.interop.core.test_forward_gradients import Code

X = torch.tensor([[1.0, 2, 3], [0, 0, 0], [-1, 1, 0.5], [2, -2, 1]])
LABELS = (X > 0).float()


def clamped(x: torch.Tensor) -> torch.Tensor:
    """Multiplies by a factor that is written without grad."""
    size = (x * x).sum(1, keepdim=True)
    with torch.no_grad():
        size.clamp_min_(0.5)
    return x * size


FUNCTIONS: dict[str, Callable] = {
    "abs": lambda x: x.abs() ** 3,
    "write": clamped,
    "hypot": lambda x: torch.hypot(x, x + 1),
    "atan2": lambda x: torch.atan2(x, x + 1.5),
    "xlogy": lambda x: torch.xlogy(x + 3, x.abs() + 1),
    "std": lambda x: x.std(1),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 4, dim=0),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, torch.zeros(4, 3, dtype=x.dtype), reduction="none"),
    "huber": lambda x: F.huber_loss(x, torch.zeros(4, 3, dtype=x.dtype), reduction="none"),
    "elu": F.elu,
    "logsigmoid": F.logsigmoid,
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, LABELS.to(x), reduction="none"),
    "soft_margin": lambda x: F.soft_margin_loss(9 * x, 2 * LABELS.to(x) - 1, reduction="none"),
    "prelu": lambda x: F.prelu(x, x[0] * 0.3),
    "pow": lambda x: x**3 + x**2 + x**1 + x**0,
    "scatter_reduce": lambda x: torch.ones(2, 3, dtype=x.dtype).scatter_reduce(
        0, torch.tensor([[0, 1, 0]] * 4), x, "prod"
    ),
    "i1": torch.special.i1,
    "digamma": lambda x: torch.digamma(x + 4),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(name: str) -> None:
    def loss(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        out = FUNCTIONS[name](x if x.requires_grad else x.requires_grad_())
        weights = torch.linspace(0.5, 1.5, out.numel()).to(out).view(out.shape)
        (slope,) = torch.autograd.grad((out * weights).sum(), x, create_graph=True)
        return (slope * torch.linspace(-1, 1, 12).to(slope).view(4, 3)).sum()

    module = Code(loss, nn.Identity())
    x = X.double().requires_grad_()
    (expected,) = torch.autograd.grad(module(x), x)
    converted = to_jax(module)
    actual = jax.grad(lambda x: converted.apply({}, {}, x)[0])(jnp.asarray(X.numpy()))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)


def test_powers_of_whole_numbers_are_exact() -> None:
    converted = to_jax(Code(lambda _, x: (x**2, x**0, x**1), nn.Identity()))
    x = np.array([4999, -4997, 0, 46340], np.int32)
    for actual, exponent in zip(converted.apply({}, {}, x)[0], (2, 0, 1), strict=True):
        np.testing.assert_array_equal(actual, x.astype(np.int64) ** exponent)


def test_the_power_zero_has_a_gradient_at_zero() -> None:
    converted = to_jax(Code(lambda _, x: (x**0).sum(), nn.Identity()))
    gradient = jax.grad(lambda x: converted.apply({}, {}, x)[0])(jnp.array([0.0, 2.0]))
    np.testing.assert_array_equal(gradient, [0, 0])


@pytest.mark.parametrize("name", ["ctc_loss", "pinverse"])
def test_the_gradient_of_a_jitted_function(name: str) -> None:
    """Derivatives of their own, taken when the trace is over."""
    rng = np.random.default_rng(0)
    if name == "pinverse":
        module = Code(lambda _, x: torch.pinverse(x).sin().sum(), nn.Identity())
        inputs = [rng.standard_normal((4, 3)).astype(np.float32)]
    else:
        module = Code(lambda _, x, *rest: F.ctc_loss(x.log_softmax(-1), *rest), nn.Identity())
        targets = [np.array([[1, 2, 3], [2, 2, 1]]), np.array([6, 5]), np.array([3, 2])]
        inputs = [rng.standard_normal((6, 2, 5)).astype(np.float32), *targets]
    converted = to_jax(module)
    run = jax.jit(lambda *inputs: converted.apply({}, {}, *inputs)[0])
    x = torch.from_numpy(inputs[0]).requires_grad_()
    (expected,) = torch.autograd.grad(module(x, *map(torch.from_numpy, inputs[1:])), x)
    np.testing.assert_allclose(jax.grad(run)(*inputs), expected, rtol=1e-4, atol=1e-6)
