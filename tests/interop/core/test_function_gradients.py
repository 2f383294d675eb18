"""`torch.autograd.Function` below `torch.autograd.grad` of forward's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F

from jaxsr.interop import to_jax
from tests.calls import Call

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


class Clipped(Function):
    """Not its derivative: a straight-through estimator."""

    @staticmethod
    def forward(ctx, x, low):
        return F.relu(x - low)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5, None


class Exponential(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0] * 1.5


class SavesBetween(Function):
    """Saves a tensor that is neither input nor output, which has no gradient in torch."""

    @staticmethod
    def forward(ctx, x):
        square = x**2
        ctx.save_for_backward(square)
        return square * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 * ctx.saved_tensors[0]


class Penalty(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.activation = activation

    def forward(self, x):
        x = x.detach().requires_grad_()
        out = self.last(self.activation(self.first(x)))
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean() + out.mean()


@pytest.mark.parametrize(
    "activation",
    [
        Cube.apply,
        lambda x: Clipped.apply(x, 0.1),
        lambda x: Cube.apply(Clipped.apply(x, 0.1)),
        lambda x: Clipped.apply(Cube.apply(x), 0.1),
        lambda x: Exponential.apply(Clipped.apply(x, 0.1)),
        lambda x: SavesBetween.apply(Cube.apply(x)),
    ],
    ids=["cube", "straight through", "both", "other order", "saves its output", "saves a square"],
)
def test_a_gradient_penalty_through_a_function(activation):
    torch.manual_seed(0)
    module = Penalty(activation)
    model = to_jax(module)
    run = jax.jit(jax.value_and_grad(lambda p, x: model.apply(p, {}, x)[0]))
    value, slopes = run(model.params, X)
    loss = module(torch.from_numpy(X))
    loss.backward()
    np.testing.assert_allclose(value, loss.detach(), rtol=1e-5)
    for name, parameter in module.named_parameters():
        expected = parameter.grad.numpy()  # pyright: ignore
        np.testing.assert_allclose(slopes[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_second_derivatives_by_jax_use_backward_too():
    class Both(nn.Module):
        def forward(self, x):
            return Exponential.apply(Clipped.apply(x, 0.1)).sum()

    model, x = to_jax(Both()), X[0]
    tensor = torch.from_numpy(x).requires_grad_()
    slope = torch.autograd.grad(Both()(tensor), tensor, create_graph=True)[0]
    (expected,) = torch.autograd.grad(slope.square().sum(), tensor)
    slope_of = jax.grad(lambda x: model.apply({}, {}, x)[0])
    got = jax.jit(jax.grad(lambda x: (slope_of(x) ** 2).sum()))(x)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


class Affine(Function):
    """Its backward leaves the sum over what was broadcast to torch."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x * weight + bias

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, gradient * x, gradient


@pytest.mark.parametrize("shapes", [[(4,), (3, 1)], [(1, 4), ()], [(3, 4), (1,)]])
def test_gradients_of_inputs_that_are_broadcast_are_summed(shapes):
    rng = np.random.default_rng(0)
    arrays = [X, *(rng.normal(size=shape).astype(np.float32) for shape in shapes)]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    expected = torch.autograd.grad(Affine.apply(*tensors).square().sum(), tensors)
    model = to_jax(Call(Affine.apply))
    gradients = jax.jit(
        jax.grad(lambda *a: (model.apply({}, {}, *a)[0] ** 2).sum(), argnums=(0, 1, 2))
    )(*arrays)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


class Turn(Function):
    """The product of complex numbers."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight.conj(), gradient * x.conj()


@pytest.mark.parametrize("loss", ["abs", "real", "imag"])
def test_gradients_of_complex_numbers_are_torchs(loss):
    """JAX's are their conjugates."""
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=4) + 1j * rng.normal(size=4)).astype(np.complex64) for _ in range(2)]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    expected = torch.autograd.grad(getattr(torch, loss)(Turn.apply(*tensors) ** 2).sum(), tensors)
    model = to_jax(Call(Turn.apply))
    part = getattr(jnp, loss)
    gradients = jax.grad(lambda *a: part(model.apply({}, {}, *a)[0] ** 2).sum(), (0, 1))(*arrays)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(np.conj(ours), theirs, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_another_shape_is_refused():
    class Summed(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.sum()

    model = to_jax(Call(Summed.apply))
    with pytest.raises(ValueError, match=r"gradient of shape \(\) for input 0 of shape \(3, 4\)"):
        jax.grad(lambda x: model.apply({}, {}, x)[0].sum())(X)
