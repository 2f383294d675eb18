"""Attributes that Python does not copy, and functions over parameters."""

import functools
import threading
import types

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.ones(4))
        self.table = types.MappingProxyType({"scale": 2.0, "mean": self.mean})
        self.lock = threading.Lock()
        self.project = functools.partial(F.linear, weight=self.linear.weight, bias=self.linear.bias)

    def forward(self, x):
        with self.lock:
            return self.project(x) * self.table["scale"] + self.table["mean"]  # pyright: ignore


def test_values_and_gradients_follow_the_parameters():
    module = Holds()
    model = to_jax(module)
    params = {name: value * 3 for name, value in model.params.items()}
    buffers = {name: value * 3 for name, value in model.buffers.items()}
    run = jax.jit(jax.value_and_grad(lambda p: model.apply(p, buffers, X)[0].sum()))
    value, slopes = run(params)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.mul_(3)
    expected = module(torch.from_numpy(X)).sum()
    expected.backward()
    np.testing.assert_allclose(value, expected.detach(), rtol=1e-5)
    np.testing.assert_allclose(
        slopes["linear.weight"], np.asarray(module.linear.weight.grad), rtol=1e-5
    )


class Opens(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.rows = {"a": (n for n in range(3))}  # pyright: ignore


def test_what_cannot_be_copied_is_named():
    with pytest.raises(UnsupportedTorchError, match=r"self\.inner\.rows of Opens cannot be copied"):
        to_jax(Opens())
