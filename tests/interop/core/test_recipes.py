"""Python needs values that depend on no input: large constants, masks, numbers in buffers."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
LARGE = 400


class Longformer(nn.Module):
    """Asks whether a large mask that no input reaches has a global position."""

    def __init__(self, position=None):
        super().__init__()
        self.position = position

    def forward(self, x):
        mask = torch.ones(LARGE, LARGE).expand(2, -1, -1)
        mask = (1.0 - mask).masked_fill(mask == 0, -1.0)[:, 0, :]
        if self.position is not None:
            mask[torch.arange(LARGE).expand(2, -1) == self.position] = 1.0
        if (mask > 0).any().item():
            return x * 2
        return x + torch.arange(LARGE * LARGE).view(LARGE, LARGE)[3, mask[0] < 1].sum()


class Xmod(nn.Module):
    """Sends samples through one adapter each, by a mask that no input reaches."""

    def __init__(self):
        super().__init__()
        self.adapters = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x):
        y, language = torch.zeros_like(x), torch.ones(x.shape[0])
        for i, adapter in enumerate(self.adapters):
            y[language == i] = adapter(x[language == i])
        return y


class Mimi(nn.Module):
    """Keeps the numbers of its configuration in buffers that are not part of the state_dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.stride: torch.Tensor
        self.register_buffer("stride", torch.tensor(3), persistent=False)
        self.before = self.stride // 2  # in a plain attribute

    def forward(self, x):
        frames = torch.ceil(x.shape[-1] / self.stride).to(torch.int64)
        pads: Any = (self.before, frames * self.stride - x.shape[-1])  # torch takes tensors, too
        return F.pad(self.linear(x), pads)


class HviCidNet(nn.Module):
    """Makes a tensor by its class, of sizes and of numbers."""

    def forward(self, x):
        sized = torch.Tensor(x.shape[0], 1, x.shape[-1]).to(x.device)
        sized[:] = torch.Tensor([0.5])
        sized[x[:, :1] > 0] = 2.0
        return sized * x


class Reformer(nn.Module):
    """Fills memory that torch leaves as it was."""

    def forward(self, x):
        places = x.argsort(-1)
        undo = places.new(*places.size())
        undo.scatter_(-1, places, torch.arange(x.shape[-1]).expand(places.shape))
        return x.sort(-1).values.gather(-1, undo)


@pytest.mark.parametrize(
    "make",
    [Longformer, lambda: Longformer(5), Xmod, Mimi, HviCidNet, Reformer],
    ids=["large", "written", "masks", "buffers", "class", "empty"],
)
def test_values_that_no_input_reaches_are_known_in_python(make):
    torch.manual_seed(0)
    module = make()
    jm = to_jax(module)

    def loss(params, buffers, x):
        y = jm.apply(params, buffers, x)[0]
        return (y**2).sum(), y

    gradient = jax.jit(jax.grad(loss, argnums=2, has_aux=True))
    dx, y = gradient(jm.params, jm.buffers, X)
    x = torch.from_numpy(X).requires_grad_()
    expected = module(x)
    (expected**2).sum().backward()
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-6, atol=1e-6)
    assert x.grad is not None
    np.testing.assert_allclose(dx, x.grad, rtol=1e-5, atol=1e-5)


def test_outside_jit_a_buffers_number_is_that_which_apply_gets():
    module = Mimi()
    jm = to_jax(module)
    module.stride.fill_(5)
    actual = jm.apply(jm.params, {"stride": np.int32(5)}, X)[0]
    np.testing.assert_allclose(actual, module(torch.from_numpy(X)).detach(), atol=1e-6)


class Counts(nn.Module):
    def __init__(self, persistent=False):
        super().__init__()
        self.count: torch.Tensor
        self.register_buffer("count", torch.tensor(0), persistent=persistent)

    def forward(self, x):
        if self.training:
            self.count += 1
            return x
        return x * 2 if self.count > 0 else x


@pytest.mark.parametrize("first", [False, True])
def test_a_number_that_forward_changes_is_no_constant(first):
    jm = to_jax(Counts())
    with pytest.raises(
        UnsupportedTorchError, match=r"writes the buffer count, and needs its value"
    ):
        for train in (first, not first):
            jax.jit(jm.apply, static_argnames="train")(jm.params, jm.buffers, X, train=train)


def test_a_number_of_the_state_dict_is_no_constant():
    jm = to_jax(Counts(persistent=True))
    with pytest.raises(UnsupportedTorchError, match="the value of a traced tensor"):
        jax.jit(jm.apply, static_argnames="train")(jm.params, jm.buffers, X, train=False)


class Overwritten(nn.Module):
    def forward(self, x):
        mask = torch.zeros(LARGE, LARGE)
        row = mask[0]
        small = torch.zeros(3)
        large = small.expand(LARGE * LARGE, 3) + 1
        small += x[0, 0, 0]  # after `large` was made of it
        mask[0, 0] = x[0, 0, 0]
        return x * 2 if (large if self.training else row).any() else x


def test_what_an_input_has_overwritten_is_not_known():
    jm = to_jax(Overwritten())
    for train in (False, True):
        with pytest.raises(UnsupportedTorchError, match="the value of a traced tensor"):
            jm.apply(jm.params, jm.buffers, X, train=train)


def test_whole_numbers_of_an_inputs_shape():
    """As force fields number the molecules of atoms, and language models mask tokens."""

    class Sums(nn.Module):
        def forward(self, x, ids):
            molecules = torch.zeros_like(ids)
            count = int(molecules[-1]) + 1
            total = x.new_zeros(count).index_add(0, molecules, x)
            if torch.ones_like(x, dtype=torch.bool).all() and ids.new_full((2,), 3).sum() == 6:
                return total * 2
            return total

    module, converted = Sums(), to_jax(Sums())
    x, ids = np.arange(5, dtype=np.float32), np.array([3, 1, 2, 0, 1])
    expected = module(torch.from_numpy(x), torch.from_numpy(ids))
    actual, _ = jax.jit(converted.apply)({}, {}, x, ids)
    np.testing.assert_array_equal(actual, expected)
