"""Tensors that the first call makes of weights or buffers, and that torch keeps as they are."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


class Anchored(nn.Module):
    """Reads an anchor that the first call makes, of its weight, of a count or of constants."""

    anchor = None

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("frequencies", torch.rand(3))
        self.frequencies: torch.Tensor
        self.normalise = nn.BatchNorm1d(3)
        self.table = {}

    def forward(self, x):
        return self.normalise(x @ self.weight) + self.extra(x)

    def extra(self, x):
        raise NotImplementedError


class OfWeight(Anchored):
    def extra(self, x):
        if self.anchor is None:
            self.anchor = self.weight.detach().clone()
        return x @ (self.weight - self.anchor)


class InTable(Anchored):
    def extra(self, x):
        if "weight" not in self.table:
            self.table["weight"] = self.weight.detach() * 2
        return x @ (self.weight - self.table["weight"])


class OfCount(Anchored):
    def extra(self, x):
        if self.anchor is None:
            self.anchor = self.count + 1
        self.count += 1
        return x * self.anchor * self.count


class CountsInTensor(Anchored):
    """A tensor of constants that each call moves on."""

    def extra(self, x):
        if self.anchor is None:
            self.anchor = torch.zeros(1)
        self.anchor += 1
        return x * self.anchor


class ReplacesTensor(Anchored):
    def extra(self, x):
        self.anchor = torch.ones(1) if self.anchor is None else self.anchor + 1
        return x * self.anchor


class CountsInTable(Anchored):
    def extra(self, x):
        self.table["count"] = self.table.get("count", torch.zeros(1)) + 1
        return x * self.table["count"]


class CountsInObject(Anchored):
    def __init__(self) -> None:
        super().__init__()
        self.box = SimpleNamespace(count=None)

    def extra(self, x):
        self.box.count = torch.ones(1) if self.box.count is None else self.box.count + 1
        return x * self.box.count


class View(Anchored):
    """Follows the weight in torch as well."""

    def extra(self, x):
        if self.anchor is None:
            self.anchor = self.weight.detach()
        return x @ self.anchor


class OfConstants(Anchored):
    def extra(self, x):
        if self.anchor is None:
            self.anchor = self.frequencies.cos()
        return x * self.anchor


class EveryCall(Anchored):
    def extra(self, x):
        self.table["weight"] = self.weight * 2
        return x @ self.table["weight"]


class OldWeightNorm(Anchored):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.weight_norm(nn.Linear(3, 3))

    def extra(self, x):
        return self.get_submodule("layer")(x)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "kind", [OfCount, CountsInTensor, ReplacesTensor, CountsInTable, CountsInObject]
)
def test_counts_in_tensors_are_refused(kind, train):
    model = to_jax(kind())
    with pytest.raises(UnsupportedTorchError, match=r"keeps a tensor in `self\.(anchor|table|box)"):
        model.apply(model.params, model.buffers, X, train=train)


@pytest.mark.parametrize("kind", [OfWeight, InTable])
def test_what_torch_would_keep_is_refused(kind):
    model = to_jax(kind())
    with pytest.raises(UnsupportedTorchError, match=r"keeps a tensor in `self\.(anchor|table)"):
        model.apply(model.params, model.buffers, X, train=True)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("kind", [View, OfConstants, EveryCall, OldWeightNorm])
def test_what_follows_the_state_passes(kind):
    """Three steps with moving weights, as torch takes them."""
    reference, model = kind().train(), to_jax(kind())
    params, buffers = model.params, model.buffers

    @jax.jit
    def gradients(params, buffers):
        def loss(params):
            outputs, after = model.apply(params, buffers, X, train=True)
            return jnp.sum(outputs**2), after

        return jax.grad(loss, has_aux=True)(params)

    for _ in range(3):
        reference.zero_grad()
        reference(torch.from_numpy(X)).square().sum().backward()
        slopes, buffers = gradients(params, buffers)
        params = {name: value - 0.01 * slopes[name] for name, value in params.items()}
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                expected = parameter.grad.numpy()
                np.testing.assert_allclose(slopes[name], expected, rtol=1e-4, atol=1e-4)
                parameter.sub_(0.01 * parameter.grad)
