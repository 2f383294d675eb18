"""`torch.cond`, loops, `scan`, `map` and `flex_attention` inside forward, against torch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan, while_loop
from torch.nn.attention import flex_attention as flex

from jaxsr.interop import to_jax
from jaxsr.interop.errors import UnsupportedTorchError
from tests.interop.core.test_forward_gradients import Code, jitted_and_eager, mlp, points


def branches(network: Any, x: torch.Tensor) -> torch.Tensor:
    def large(x: torch.Tensor) -> torch.Tensor:
        return network(x).sin()

    return torch.cond(x.sum() > 6, large, lambda x: network(x) * 2, (x,))


def known_branch(network: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(torch.tensor(True), network, lambda x: x[:2], (x,))


def rounds(network: Any, x: torch.Tensor) -> torch.Tensor:
    def goes_on(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x.abs().sum() < 50) & (i < 20)

    count, x = while_loop(goes_on, lambda i, x: (i + 1, x * 1.7), (torch.tensor(0), x))
    return x * count


def recurrence(network: Any, x: torch.Tensor) -> torch.Tensor:
    def step(carry: dict, row: torch.Tensor) -> tuple[dict, torch.Tensor]:
        state = torch.tanh(network[0](row) + carry["state"])
        return {"state": state}, state * 2

    carry, rows = scan(step, {"state": torch.zeros(8)}, x, reverse=True)
    return rows.sum(1) + carry["state"].sum()


def each_row(network: Any, x: torch.Tensor) -> torch.Tensor:
    return torch_map(lambda row, scale: network(row * scale), x, torch.full((3,), 1.5))  # type: ignore[arg-type]


PROGRAMS = [branches, known_branch, rounds, recurrence, each_row]


def plain(program: Callable, network: Any, x: torch.Tensor) -> torch.Tensor:
    """The program in Python, where torch's own needs its compiler for what it does."""
    if program is branches:
        return network(x).sin() if x.sum() > 6 else network(x) * 2
    if program is recurrence:
        state, rows = torch.zeros(8), []
        for row in x.flip(0):
            state = torch.tanh(network[0](row) + state)
            rows.insert(0, state * 2)
        return torch.stack(rows).sum(1) + state.sum()
    if program is each_row:
        return torch.stack([network(row * 1.5) for row in x])
    if program is known_branch:
        return network(x)
    count = 0
    while x.abs().sum() < 50 and count < 20:
        x, count = x * 1.7, count + 1
    return x * count


@pytest.mark.parametrize(("program", "jit"), jitted_and_eager(PROGRAMS))
def test_programs(program: Callable, jit: bool) -> None:
    for scale in (0.5, 2.0):
        x = points(5, 3) * scale
        module = Code(program, mlp())
        converted = to_jax(module)

        def loss(params: dict, x: jax.Array) -> jax.Array:
            return jnp.square(converted.apply(params, converted.buffers, x)[0]).sum()  # noqa: B023

        parameters = dict(module.named_parameters())
        expected = plain(program, module.network, x).square().sum()
        array = jnp.asarray(x.numpy())
        if program is rounds:
            value = (jax.jit(loss) if jit else loss)(converted.params, array)
            np.testing.assert_allclose(value, expected.detach(), rtol=1e-5)
            continue
        step = jax.value_and_grad(loss)
        value, gradients = (jax.jit(step) if jit else step)(converted.params, array)
        np.testing.assert_allclose(value, expected.detach(), rtol=1e-5)
        slopes = torch.autograd.grad(expected, list(parameters.values()), allow_unused=True)
        for name, slope in zip(parameters, slopes, strict=True):
            want = 0 if slope is None else slope.numpy()
            np.testing.assert_allclose(gradients[name], want, rtol=1e-4, atol=1e-4)


def relative(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + 0.1 * (h + 1) * (k - q)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


class Attention(nn.Module):
    def __init__(self, score_mod: Callable | None, mask_mod: Callable | None) -> None:
        super().__init__()
        self.project = nn.Linear(16, 64)
        self.bias = nn.Parameter(torch.linspace(-1, 1, 12))
        self.score_mod, self.mask_mod = score_mod, mask_mod

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).view(2, 12, 8, 8).transpose(1, 2).split((4, 2, 2), 1)
        mask = None
        if self.mask_mod is not None:
            mask = flex.create_block_mask(self.mask_mod, 2, 4, 12, 12, device="cpu", BLOCK_SIZE=4)
        score_mod = self.score_mod
        if score_mod == "learnt":
            score_mod = lambda score, b, h, q, k: score + self.bias[k]  # noqa: E731
        return flex.flex_attention(q, k, v, score_mod, mask, enable_gqa=True)  # type: ignore[return-value]

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).view(2, 12, 8, 8).transpose(1, 2).split((4, 2, 2), 1)
        scores = q @ k.repeat_interleave(2, 1).transpose(2, 3) / 8**0.5
        if self.score_mod == "learnt":
            scores = scores + self.bias
        elif self.score_mod is not None:
            steps = torch.arange(12)
            heads = torch.arange(1, 5)[:, None, None]
            scores = scores + 0.1 * heads * (steps - steps[:, None])
        if self.mask_mod is not None:
            scores = scores.masked_fill(torch.ones(12, 12).triu(1) > 0, -torch.inf)
        return scores.softmax(-1) @ v.repeat_interleave(2, 1)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("score_mod", "mask_mod"),
    [(None, None), (relative, None), (None, causal), (relative, causal), ("learnt", causal)],
    ids=["plain", "scores", "mask", "both", "learnt"],
)
def test_flex_attention(score_mod: Any, mask_mod: Any) -> None:
    torch.manual_seed(0)
    module = Attention(score_mod, mask_mod)
    x = torch.randn(2, 12, 16)
    expected = module.plain(x)
    slopes = torch.autograd.grad(
        expected.square().sum(), list(module.parameters()), allow_unused=True
    )
    converted = to_jax(module)

    @jax.jit
    def step(params: dict) -> Any:
        def loss(params: dict) -> Any:
            out, _ = converted.apply(params, converted.buffers, jnp.asarray(x.numpy()))
            return jnp.square(out).sum(), out

        return jax.value_and_grad(loss, has_aux=True)(params)

    (_, out), gradients = step(converted.params)
    np.testing.assert_allclose(out, expected.detach(), rtol=1e-5, atol=1e-6)
    for name, slope in zip(dict(module.named_parameters()), slopes, strict=True):
        want = 0 if slope is None else slope.numpy()
        np.testing.assert_allclose(gradients[name], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            lambda n, x: torch.cond(x.sum() > 0, lambda x: x, lambda x: x[:2], (x,)),
            "torch.cond: results differ in shape",
        ),
        (
            lambda n, x: scan(lambda c, r: (c + torch.rand(3), r), torch.zeros(3), x)[1],
            "random numbers inside scan, where each round would draw the same",
        ),
        (
            lambda n, x: while_loop(lambda x: x.sum() < 9, lambda x: (x[:1],), (x,)),
            "while_loop: results differ in shape",
        ),
    ],
)
def test_errors(program: Callable, message: str) -> None:
    converted = to_jax(Code(program, mlp()))
    with pytest.raises(UnsupportedTorchError, match=message) as error:
        converted.apply(
            converted.params, converted.buffers, jnp.ones((5, 3)), rng=jax.random.key(0)
        )
    assert "\n" not in str(error.value)
