"""nn.Embedding and nn.EmbeddingBag against torch."""

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax

INDICES = torch.tensor([1, 5, 2, 2, 0, 7, 3, 5])
OFFSETS = torch.tensor([0, 3, 3, 6])  # the second bag is empty
CASES = {
    "two axes": ({}, (INDICES.reshape(2, 4),)),
    "offsets": ({}, (INDICES, OFFSETS)),
    "sum": ({"mode": "sum"}, (INDICES, OFFSETS)),
    "weighted": ({"mode": "sum"}, (INDICES, OFFSETS, torch.linspace(0.5, 2, 8))),
    "max": ({"mode": "max"}, (INDICES, OFFSETS)),
    "padding": ({"padding_idx": 5}, (INDICES, OFFSETS)),
    "last offset": ({"include_last_offset": True}, (INDICES, torch.tensor([0, 3, 3, 8]))),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    options, inputs = CASES[name]
    torch.manual_seed(0)
    module = nn.EmbeddingBag(8, 3, **options)
    expected = module(*inputs)
    expected.sin().sum().backward()
    converted = to_jax(module)
    arrays = [tensor.numpy() for tensor in inputs]

    def loss(params):
        output = converted.apply(params, {}, *arrays)[0]
        return jax.numpy.sin(output).sum(), output

    gradients, output = jax.jit(jax.grad(loss, has_aux=True))(converted.params)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-6)
    assert module.weight.grad is not None
    np.testing.assert_allclose(gradients["weight"], module.weight.grad, atol=1e-6)


def test_gradients_by_frequency_are_refused_and_values_pass():
    module = nn.EmbeddingBag(8, 3, mode="sum", scale_grad_by_freq=True)
    converted, indices = to_jax(module), INDICES.reshape(2, 4)
    output = converted.apply(converted.params, {}, indices.numpy())[0]
    np.testing.assert_allclose(output, module(indices).detach(), atol=1e-6)
    with pytest.raises(UnsupportedTorchError, match="counts of other rows; use torch"):
        jax.grad(lambda p: converted.apply(p, {}, indices.numpy())[0].sum())(converted.params)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_indices_behind_the_last_offset_are_in_no_bag(mode, padding):
    """Torch's kernels disagree there by mode; the reference is torch without these indices."""
    offsets = torch.tensor([0, 3, 5])
    module = nn.EmbeddingBag(8, 3, mode=mode, include_last_offset=True, padding_idx=padding)
    expected = module(INDICES[:5], offsets)
    expected.sin().sum().backward()
    converted = to_jax(module)

    def loss(params):
        output = converted.apply(params, {}, INDICES.numpy(), offsets.numpy())[0]
        return jax.numpy.sin(output).sum(), output

    gradients, output = jax.grad(loss, has_aux=True)(converted.params)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-6)
    assert module.weight.grad is not None
    np.testing.assert_allclose(gradients["weight"], module.weight.grad, atol=1e-6)


class Slopes(nn.Module):
    """The gradient of a table by the squares of its rows: twice each row that is read."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 3, scale_grad_by_freq=True)

    def forward(self, indices):
        total = self.table(indices).square().sum()
        (slope,) = torch.autograd.grad(total, self.table.weight, create_graph=True)
        return slope


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint])
def test_second_derivatives_by_frequency(transform):
    module, indices = Slopes(), INDICES.reshape(2, 4)
    module(indices).sin().sum().backward()
    converted = to_jax(module)

    @transform
    def loss(params):
        return jax.numpy.sin(converted.apply(params, {}, indices.numpy())[0]).sum()

    slope = module.table.weight.grad
    assert slope is not None
    np.testing.assert_allclose(jax.grad(loss)(converted.params)["table.weight"], slope, atol=1e-6)


def test_gradients_by_frequency_of_each_of_several_inputs():
    module, indices = nn.Embedding(8, 3, scale_grad_by_freq=True), INDICES.reshape(2, 4)
    converted = to_jax(module)

    def loss(params, row):
        return converted.apply(params, {}, row)[0].sum()

    gradient = jax.vmap(jax.grad(loss), (None, 0))
    gradients = gradient(converted.params, indices.numpy())["weight"]
    for row, of_row in zip(indices, gradients, strict=True):
        module.zero_grad()
        module(row).sum().backward()
        assert module.weight.grad is not None
        np.testing.assert_allclose(of_row, module.weight.grad, atol=1e-6)
