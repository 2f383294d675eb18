"""Operators of other libraries: their Python code is traced, with their own backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, lowering, to_jax

pytestmark = pytest.mark.usefixtures("registry_copy")
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


@torch.library.custom_op("jaxsr_test::swish", mutates_args=())
def swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


swish.register_fake(lambda x, beta=1.0: torch.empty_like(x))


@torch.library.custom_op("jaxsr_test::round_through", mutates_args=())
def round_through(x: torch.Tensor, levels: int) -> torch.Tensor:
    return torch.round(x * levels) / levels


round_through.register_fake(lambda x, levels: torch.empty_like(x))


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.levels = inputs[1]


def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * (x.abs() < 1) * ctx.levels, None


round_through.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("jaxsr_test::shift_", mutates_args=("x",))
def shift_(x: torch.Tensor, by: float) -> None:
    x += by


@torch.library.custom_op("jaxsr_test::positives", mutates_args=())
def positives(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, sum(v > 0 for v in x.flatten().tolist()))


positives.register_fake(torch.empty_like)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _apply(function):
    jm = to_jax(Calls(function))
    return jax.jit(lambda x: jm.apply({}, {}, x)[0])


def count(x):
    return positives(x)


def test_python_code_is_traced():
    expected = swish(torch.from_numpy(X), 2.0)
    np.testing.assert_allclose(_apply(lambda x: swish(x, beta=2.0))(X), expected, atol=1e-6)
    gradient = jax.grad(lambda x: _apply(lambda x: swish(x, 1.0))(x).sum())(jnp.asarray(X))
    x = torch.from_numpy(X).requires_grad_()
    (x * torch.sigmoid(x)).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(gradient, x.grad, atol=1e-6)


@pytest.mark.parametrize(
    "call", [lambda x: round_through(x, 8), lambda x: round_through(x, levels=8)]
)
def test_the_registered_backward_is_the_derivative(call):
    x = torch.from_numpy(X).requires_grad_()
    expected = call(x)
    (expected**2).sum().backward()
    apply = _apply(call)
    np.testing.assert_allclose(apply(X), expected.detach(), atol=1e-6)
    gradient = jax.grad(lambda x: (apply(x) ** 2).sum())(jnp.asarray(X))
    assert x.grad is not None
    np.testing.assert_allclose(gradient, x.grad, atol=1e-5)


def test_written_arguments():
    def shifted(x):
        y = x * 2
        shift_(y[1:], 3.0)
        return y

    np.testing.assert_allclose(_apply(shifted)(X), shifted(torch.from_numpy(X)), atol=1e-6)


def test_code_that_reads_values_needs_a_lowering():
    with pytest.raises(UnsupportedTorchError, match="tolist"):
        _apply(count)(X)
    lowering("jaxsr_test::positives")(lambda x: jnp.full_like(x, (x > 0).sum()))
    np.testing.assert_array_equal(_apply(count)(X), positives(torch.from_numpy(X)))


def test_an_operator_whose_shape_depends_on_values_is_refused_by_name():
    library = torch.library.Library("jaxsr_picking", "FRAGMENT")
    library.define("positive(Tensor x) -> Tensor")
    library.impl("positive", lambda x: x[x > 0], "CPU")

    @torch.library.register_fake("jaxsr_picking::positive", lib=library)
    def _(x):
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    class Picks(torch.nn.Module):
        def forward(self, x):
            return torch.ops.jaxsr_picking.positive(x)

    with pytest.raises(UnsupportedTorchError, match=r"jaxsr_picking::positive.*depends on values"):
        to_jax(Picks()).apply({}, {}, np.ones(3, np.float32))
