"""Random chains of views and writes, held against torch after every step."""
# ruff: noqa: PLW0108  (lambdas put off what they name)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from jaxsr.interop import to_jax

BASE = (2, 3, 4)


def _view(kind: int, a: int, b: int, y: torch.Tensor) -> torch.Tensor:
    """One view of `y`, whatever its shape; `a` and `b` choose among the possibilities."""
    d = y.dim()
    if d == 0 or y.numel() == 0:
        return y.view_as(y)
    i, j = a % d, b % d
    n = y.shape[i]
    choices = (
        lambda: y.transpose(i, j),
        lambda: y.select(i, b % n),
        lambda: y.narrow(i, b % n, n - b % n),
        lambda: y.unsqueeze(a % (d + 1)),
        lambda: y.flatten() if y.is_contiguous() else y.movedim(i, j),
        lambda: y[(slice(None),) * i + (slice(b % n, None, 2),)],
        lambda: y.diagonal(0, 0, 1) if d > 1 else y[::2],
        lambda: y.unfold(i, min(2, n), 2),
        lambda: y.chunk(2, i)[0],
        lambda: y.squeeze(),
        lambda: y.detach(),
        lambda: y.permute(*reversed(range(d))),
    )
    return choices[kind % len(choices)]()


def _write(kind: int, y: torch.Tensor) -> None:
    choices = (
        lambda: y.mul_(1.5),
        lambda: y.add_(1),
        lambda: y.fill_(2.0),
        lambda: y.sin_(),
        lambda: y.copy_(torch.arange(float(y.numel())).reshape(y.shape)),
        lambda: y.zero_(),
    )
    if kind % 2:
        with torch.no_grad():
            choices[kind % len(choices)]()
    else:
        choices[kind % len(choices)]()


class Program(nn.Module):
    def __init__(self, steps: list[tuple[int, int, int, int, int]]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        base = x * 1.25
        known = [base]
        for source, kind, a, b, write in self.steps:
            view = _view(kind, a, b, known[source % len(known)])
            known.append(view)
            if write:
                _write(write, view)
        return torch.cat([v.reshape(-1).cos() for v in known])


steps = st.lists(st.tuples(*[st.integers(0, 30)] * 4, st.integers(0, 6)), min_size=1, max_size=6)


def check_program(program):
    x = np.random.default_rng(0).standard_normal(BASE).astype(np.float32)
    tensor = torch.tensor(x, requires_grad=True)
    try:
        want = Program(program)(tensor)
        weights = np.random.default_rng(1).standard_normal(want.shape).astype(np.float32)
        (want * torch.tensor(weights)).sum().backward()
    except RuntimeError:
        return  # torch refuses (a multi-output view written, a value needed for backward changed)
    jm = to_jax(Program(program))

    def loss(x):
        out, _ = jm.apply({}, {}, x)
        return (out * weights).sum(), out

    grad, out = jax.grad(loss, has_aux=True)(jnp.asarray(x))
    np.testing.assert_allclose(out, want.detach().numpy(), atol=1e-5)
    assert tensor.grad is not None
    np.testing.assert_allclose(grad, tensor.grad.numpy(), atol=1e-5)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(steps)
def test_views_and_writes_match_torch(program):
    check_program(program)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(steps)
def test_many_views_and_writes_match_torch(program):
    check_program(program)


class Shift(nn.Module):
    """Rows of a sum moved down by one, and a reshape, which XLA's CPU compiler gets wrong alone."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        rows = x + 1
        moved = rows.clone()
        match self.form:
            case "slice":
                moved[1:] = rows[:-1]
            case "itself":
                moved[1:] = moved[:-1].clone()
            case "copy_":
                moved.narrow(0, 1, len(x) - 1).copy_(rows[:-1])
            case "flat":
                moved.view(-1)[3:] = rows.view(-1)[:-3]
            case "index":
                moved[torch.arange(1, len(x))] = rows[:-1]
            case "slice_scatter":
                moved = torch.slice_scatter(rows, rows[:-1], 0, 1)
            case "reshaped before":
                moved = rows.view(8, 1, 16).clone()
                moved[1:] = moved[:-1].clone()
            case "mirrored":
                moved[3] = rows[3].flip(0)
        return moved.unsqueeze(0)


FORMS = [
    "slice",
    "itself",
    "copy_",
    "flat",
    "index",
    "slice_scatter",
    "reshaped before",
    "mirrored",
]


@pytest.mark.sample(6)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_rows_shifted_in_place_are_those_before_the_write(form, dtype):
    x = np.arange(128, dtype=dtype).reshape(8, 16)
    jm = to_jax(Shift(form))
    shifted = jax.jit(lambda x: jm.apply({}, {}, x)[0])(x)
    np.testing.assert_array_equal(shifted, Shift(form)(torch.from_numpy(x)).numpy())


PARTS = {
    "unbind": lambda x: x.unbind(1),
    "chunk": lambda x: x.chunk(3, 1),
    "split of other sizes": lambda x: x.split([1, 0, 2], 1),
}


class Parted(nn.Module):
    """Reads the parts of `x`, and with `writes` once more after a write into `x`."""

    def __init__(self, parts, *, writes):
        super().__init__()
        self.parts, self.writes = parts, writes

    def forward(self, x):
        x = x * 1
        a, b, c = PARTS[self.parts](x)
        out = (a * a.sum()).sum() + (b * c.sum()).sum() * 3
        if self.writes:
            x[:, 1] = out
            out = out + (a * b.sum()).sum() + (c * c).sum()
        return out


@pytest.mark.parametrize("parts", PARTS)
def test_gradients_of_parts_are_concatenated(parts):
    network = Parted(parts, writes=False)
    model, x = to_jax(network), torch.rand(4, 3, 5)
    gradient = jax.jit(jax.grad(lambda x: model.apply({}, {}, x)[0]))
    assert "stablehlo.pad" not in gradient.lower(jnp.asarray(x.numpy())).as_text()
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(network(leaf), leaf)
    np.testing.assert_allclose(gradient(jnp.asarray(x.numpy())), expected, rtol=1e-5)


@pytest.mark.parametrize("parts", PARTS)
def test_parts_see_later_writes(parts):
    network, x = Parted(parts, writes=True), torch.rand(4, 3, 5)
    with torch.no_grad():
        expected = network(x)
    value = jax.jit(lambda x: to_jax(network).apply({}, {}, x)[0])(jnp.asarray(x.numpy()))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
