"""Writes at equal indices, running sums of narrow integers, random states of the process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from jaxsr.interop import UnsupportedTorchError, to_jax
from tests.calls import Call


def _assigned(x: Tensor, v: Tensor) -> Tensor:
    y = x * 2
    y[torch.tensor([0, 1, 1, 0])] = v
    return y


def _assigned_columns(x: Tensor, v: Tensor) -> Tensor:
    y = x * 1
    y[:, torch.tensor([1, 1, 0, 1])] = v.T[:2]
    return y


def _added_in_place(x: Tensor, v: Tensor) -> Tensor:
    y = x * 1
    return y.put_(torch.tensor([1, 1, -1, 0]), v[:, 0], accumulate=True)


WRITES = {
    "assigned": _assigned,
    "assigned columns": _assigned_columns,
    "scatter": lambda x, v: x.scatter(1, torch.tensor([[0, 0, 2], [1, 1, 1]]), v[:2]),
    "scatter_": lambda x, v: (x * 1).scatter_(0, torch.tensor([[0, 1, 0]] * 4), v),
    "index_copy": lambda x, v: x.index_copy(1, torch.tensor([2, 2]), v[:2, :2]),
    "index_copy of a row": lambda x, v: x[0].index_copy(0, torch.tensor(1), v[2, 0]),
    "mask": lambda x, v: x.masked_fill(x > 0.5, 0).index_put((x > 0.5,), v[0, 0]),
    "index_fill": lambda x, v: x.index_fill(1, torch.tensor([2, 0, 2]), v[0, 0]),
    "put": lambda x, v: x.put(torch.tensor([[5, 0], [2, -1]]), v[:2, :2]),
    "put, added": lambda x, v: x.put(torch.tensor([0, 0, 3, -1]), v[:, 1], accumulate=True),
    "put_, added": _added_in_place,
    "index_put, added": lambda x, v: x.index_put((torch.tensor([1, 0, 1, 1]),), v, accumulate=True),
}


@pytest.mark.parametrize("name", WRITES)
def test_gradients_of_writes_at_equal_indices_are_torchs(name):
    rng = np.random.default_rng(0)
    arrays = [rng.random((2, 3), np.float32), rng.random((4, 3), np.float32)]
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = WRITES[name](*inputs)
    weight = rng.random(expected.shape, np.float32)
    model = to_jax(Call(WRITES[name]))

    def loss(*arrays: jax.Array) -> jax.Array:
        return (model.apply(model.params, model.buffers, *arrays)[0] * weight).sum()

    out, _ = jax.jit(model.apply)(model.params, model.buffers, *arrays)
    np.testing.assert_allclose(out, expected.detach(), rtol=1e-6)
    gradients = torch.autograd.grad((expected * torch.tensor(weight)).sum(), inputs)
    for ours, theirs in zip(jax.grad(loss, (0, 1))(*arrays), gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def _slopes_of_a_write(x: Tensor, v: Tensor) -> Tensor:
    written = WRITES["scatter"](x, v)
    slopes = torch.autograd.grad((written**3).sum(), (x, v), create_graph=True)
    return torch.cat([slope.flatten() for slope in slopes])


def test_second_derivatives_of_a_write_are_torchs():
    x, v = (torch.rand(n, 3, requires_grad=True) for n in (2, 4))
    model = to_jax(Call(_slopes_of_a_write))
    arrays = [np.asarray(t.detach()) for t in (x, v)]
    ours = jax.grad(lambda *a: model.apply({}, {}, *a)[0].sum(), (0, 1))(*arrays)
    theirs = torch.autograd.grad(_slopes_of_a_write(x, v).sum(), (x, v))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_sums_are_counted_in_int64(name, dtype):
    x = torch.tensor([100, 90, 110, 3]).to(dtype)
    for options in ({}, {"dtype": torch.float32}):
        module = Call(lambda x, options=options: getattr(x, name)(0, **options))
        model = to_jax(module)
        out, _ = model.apply(model.params, model.buffers, jnp.asarray(x.numpy()))
        np.testing.assert_array_equal(out, module(x))


def test_the_digits_of_a_computed_value_are_refused():
    model = to_jax(Call(lambda x: x * len(f"{x.sum():.3f}")))
    with pytest.raises(UnsupportedTorchError):
        model.apply(model.params, model.buffers, jnp.ones(2))


def test_random_states_of_the_process_are_torchs():
    to_jax(nn.Linear(2, 2))
    torch.manual_seed(0)
    with torch.random.fork_rng():
        drawn = torch.rand(3)
    torch.testing.assert_close(torch.rand(3), drawn)
