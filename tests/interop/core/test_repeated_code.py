"""Long Python loops are named once; deep networks and short loops are not."""

import warnings

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import LongLoopWarning, to_jax

X = np.ones((2, 4), np.float32)


class Steps(nn.Module):
    def __init__(self, rounds):
        super().__init__()
        self.rounds, self.cell = rounds, nn.GRUCell(4, 4)

    def forward(self, x):
        hidden = torch.zeros_like(x)
        for _ in range(self.rounds):
            hidden = self.cell(x, hidden)
        return hidden


class Cell(nn.Module):
    def forward(self, x, hidden):
        return torch.tanh(x + hidden)


class OwnCell(Steps):
    def __init__(self, rounds):
        super().__init__(rounds)
        self.cell = Cell()


class Euler(nn.Module):
    def forward(self, x):
        for _ in range(300):
            x = x + 0.01 * torch.sin(x)
        return x


class Deep(nn.Module):
    def __init__(self, depth=200):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(depth)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (Steps(250), r"hidden = self\.cell"),
        (OwnCell(250), r"hidden = self\.cell"),
        (Euler(), "x = x"),
    ],
)
def test_the_line_is_named(module, line):
    model = to_jax(module)
    with pytest.warns(LongLoopWarning, match=rf"test_repeated_code\.py:\d+ `{line}.*scan"):
        jax.eval_shape(lambda p, x: model.apply(p, {}, x)[0], model.params, X)


def swish(x):
    return x * torch.sigmoid(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return swish(self.linear(x))


@pytest.mark.parametrize(
    "module",
    [Steps(20), Deep(), Deep(500), nn.Sequential(*[Block() for _ in range(300)])],
    ids=["short", "deep", "deeper", "function of deep"],
)
def test_short_loops_and_deep_networks_are_not(module):
    model = to_jax(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LongLoopWarning)
        jax.eval_shape(lambda p, x: model.apply(p, {}, x)[0], model.params, X)
