"""Buffers whose values decide Python code: `to_jax(static_buffers=[…])`."""

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, disable_observer

from jaxsr.interop import UnsupportedTorchError, to_jax
from jaxsr.interop.errors import InputError

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


class Codebook(nn.Module):
    """As in vector_quantize_pytorch: the first batch gives the first codes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("initted", torch.tensor([False]))
        self.register_buffer("codes", torch.zeros(3, 4))

    def forward(self, x):
        if not self.initted:
            self.codes.copy_(x[:3])  # pyright: ignore
            self.initted.copy_(torch.tensor([True]))
        nearest = torch.cdist(x, self.codes).argmin(1)  # pyright: ignore
        return self.codes[nearest]  # pyright: ignore


def test_a_switch_that_is_set_takes_its_branch():
    module = Codebook()
    module(torch.from_numpy(X))
    model = to_jax(module, static_buffers="init*")
    run = jax.jit(lambda buffers, x: model.apply({}, buffers, x))
    got, after = run(model.buffers, X[::-1])
    np.testing.assert_array_equal(got, module(torch.from_numpy(X[::-1].copy())))
    assert after["initted"].dtype == np.bool_


def test_a_switch_that_forward_sets_is_refused():
    model = to_jax(Codebook(), static_buffers=["initted"])
    with pytest.raises(UnsupportedTorchError, match="writes the buffer initted, and needs its val"):
        jax.jit(lambda buffers, x: model.apply({}, buffers, x))(model.buffers, X)


def test_without_the_option_the_refusal_names_it():
    model = to_jax(Codebook())
    with pytest.raises(UnsupportedTorchError, match=r'to_jax\(static_buffers=\["initted"\]\)'):
        jax.jit(lambda buffers, x: model.apply({}, buffers, x))(model.buffers, X)


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(InputError, match="'inited' matches no buffer; there are initted, codes"):
        to_jax(Codebook(), static_buffers="inited")


def test_fake_quantization_with_a_settled_observer():
    module = nn.Sequential(nn.Linear(4, 4), FakeQuantize())
    module.train()(torch.from_numpy(X))
    module.apply(disable_observer)
    model = to_jax(module, static_buffers="*_enabled")
    got, _ = jax.jit(lambda p, b, x: model.apply(p, b, x, train=True))(
        model.params, model.buffers, X * 2
    )
    np.testing.assert_allclose(got, module(torch.from_numpy(X * 2)).detach(), atol=1e-6)
