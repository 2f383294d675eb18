"""`torch.vmap` in forward: values and gradients of torch, for every kind of axis."""

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)


class Mapped(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 5))
        self.function = function

    def forward(self, x):
        return self.function(x, self.weight)


def masks(x, weight):
    """As transformers makes them: a mask of positions, by four nested maps."""

    def allowed(batch, query, key):
        return (key <= query) & (x[batch, 0, key] > 0)

    for axes in ((None, None, 0), (None, 0, None), (0, None, None)):
        allowed = torch.vmap(allowed, in_dims=axes)
    with torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex():
        mask = allowed(torch.arange(4), torch.arange(5), torch.arange(5))
    return torch.where(mask, x.sum(1)[:, None] * weight, 0.0)


def several(x, weight):
    products, rest = torch.vmap(lambda a, b: (a @ b, {"b": b * 2}), (0, None))(x, weight)
    return products.sum() + rest["b"]


FUNCTIONS = {
    "first axis": lambda x, w: torch.vmap(lambda a: (a * w).sum(-1))(x),
    "other axes": lambda x, w: torch.vmap(torch.dot, (-1, None), 0)(x[:, 0], x[:, 1, 0] + w[:4]),
    "out axis": lambda x, w: torch.vmap(lambda a: a.softmax(-1) * w, in_dims=1, out_dims=2)(x),
    "several": several,
    "keywords": lambda x, w: torch.vmap(lambda a, *, b: a + b)(x, b=w),
    "closure": lambda x, w: (
        torch.vmap(lambda a: a @ w)(x[:, :, :]) + torch.vmap(torch.sin)(x).sum()
    ),
    "masks": masks,
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name):
    module = Mapped(FUNCTIONS[name])
    x = torch.from_numpy(X).requires_grad_()
    expected = module(x)
    expected.sin().sum().backward()
    jm = to_jax(module)

    def loss(params, x):
        output = jm.apply(params, {}, x)[0]
        return jax.numpy.sin(output).sum(), output

    (by_param, by_input), output = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(jm.params, X)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-5)
    assert x.grad is not None and module.weight.grad is not None
    np.testing.assert_allclose(by_input, x.grad, atol=1e-4)
    np.testing.assert_allclose(by_param["weight"], module.weight.grad, atol=1e-4)


def test_writes_into_mapped_arguments_are_kept():
    def doubled(x, weight):
        x, out = x * 1, torch.zeros(5, 4)

        def run(row, place):
            place.copy_(row[0] * weight)
            row.mul_(2)
            return row.sum()

        return torch.vmap(run, in_dims=(0, 1))(x, out), x, out

    expected = [t.detach() for t in Mapped(doubled)(torch.from_numpy(X))]
    module = to_jax(Mapped(doubled))
    got = jax.jit(lambda x: module.apply(module.params, {}, x)[0])(X)
    for ours, torchs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, torchs, rtol=1e-5)


def test_axes_that_do_not_fit_are_torchs_error():
    module = to_jax(Mapped(lambda x, w: torch.vmap(torch.sin, in_dims=7)(x)))
    with pytest.raises(ValueError, match="Got in_dim=7"):
        module.apply(module.params, {}, X)


def test_draws_and_writes_are_refused():
    def draws(x, w):
        return torch.vmap(lambda a: a + torch.rand(5), randomness="same")(x)

    def writes(x, w):
        total = torch.zeros(3, 5) + x[0]
        return torch.vmap(total.add_)(x)

    for function, message in ((draws, "random numbers under torch.vmap"), (writes, "in place")):
        module = to_jax(Mapped(function))
        with pytest.raises(UnsupportedTorchError, match=message):
            module.apply(module.params, {}, X, rng=jax.random.key(0))
