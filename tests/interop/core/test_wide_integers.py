"""int64 numbers beyond 32 bits, while JAX's x64 mode is off."""

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch.nn import functional as F

from jaxsr.interop import to_jax
from jaxsr.interop.errors import UnsupportedTorchError

INTEGERS = np.array([1, 2, 70000, 2**31 - 1, -5])
FLOATS = np.array([1.5, 3e9, 1e10, -7.0], np.float32)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


CASES = {
    "product": (lambda x: x * x % 1000003, INTEGERS),
    "hash": (lambda x: ((x * 73856093) ^ (x * 19349663)) % 1024, INTEGERS),
    "power": (lambda x: x**3 % 1009, INTEGERS),
    "square": (lambda x: x.square() % 7, INTEGERS),
    "sum of products": (lambda x: (x[:, None] * x).sum() % 13, INTEGERS),
    "running product": (lambda x: (x % 1000 + 1).cumprod(0) % 97, INTEGERS.repeat(3)),
    "product of all": (lambda x: (x % 1000 + 1).prod() % 97, INTEGERS.repeat(3)),
    "shift": (lambda x: (x << 20) % 1009, INTEGERS),
    "dot": (lambda x: (x[None] @ x[:, None]) % 13, INTEGERS),
    "cast": (lambda x: x.long() % 1000, FLOATS),
    "floor": (lambda x: (x * 1e3).floor().long() % 97, FLOATS),
    "clamped": (lambda x: (x * x).clamp(0, 50), INTEGERS),
    "compared": (lambda x: (x * x > 10**6).float(), INTEGERS),
    "kept": (lambda x: x * x, INTEGERS),
    "index": (lambda x: torch.arange(50)[(x * 2654435) % 50], INTEGERS),
    "branches": (lambda x: torch.where(x * x > 9, x * x, -x) % 1001, INTEGERS),
    "sum": (lambda x: x + x, INTEGERS),
    "scaled sum": (lambda x: torch.add(x, x, alpha=1000) % 97, INTEGERS),
    "difference": (lambda x: -2 - x, INTEGERS),
    "negative": (lambda x: -x, np.array([-(2**31), 5])),
    "absolute": (lambda x: x.abs(), np.array([-(2**31), 3])),
    "quotient": (lambda x: x // -1, np.array([-(2**31), 3])),
    "sum of all": (lambda x: x.sum() % 1009, INTEGERS.repeat(9)),
    "sum of int32": (lambda x: x.int().sum(), INTEGERS.repeat(9)),
    "int32 wraps": (lambda x: x.int() + x.int(), INTEGERS),
    "int32 that has wrapped": (
        lambda x: ((x.clamp(2**30).int() * 2).long() - x.clamp(2**30) * 2) % 1009, INTEGERS,
    ),
    "running sum": (lambda x: x.cumsum(0), INTEGERS.repeat(3)),
    "counted by place": (lambda x: torch.zeros(2).long().scatter_add(0, x % 2, x), INTEGERS),
    "accumulated": (
        lambda x: torch.zeros(2).long().index_put((x % 2,), x, accumulate=True), INTEGERS,
    ),
    "added in place": (lambda x: x.clone().mul_(70000).add_(5), INTEGERS),
    "part in place": (lambda x: _written(x, lambda y: y[1:3].mul_(70000)), INTEGERS),
    "part replaced": (lambda x: _written(x, lambda y: y[2:].copy_(y[2:] * 3)), INTEGERS),
    "narrow into wide": (lambda x: _written(x * 9, lambda y: y[:2].fill_(3)), INTEGERS),
    "sorted": (lambda x: (x + x).sort()[0], INTEGERS),
    "places": (lambda x: (x + x).sort()[1], INTEGERS),
    "greatest": (lambda x: (x + x).max(0)[0], INTEGERS),
    "place of the greatest": (lambda x: (x + x).max(0)[1], INTEGERS),
    "place of the least": (lambda x: (x + x).reshape(1, 5).argmin(1), INTEGERS),
    "place of the greatest of all": (lambda x: (x + x).argmax(), INTEGERS),
    "joined": (lambda x: torch.cat([x + x, x]), INTEGERS),
    "stacked": (lambda x: torch.stack([x + x, x]).amax(0), INTEGERS),
    "index from a sum": (lambda x: torch.arange(50)[(x - x) + 7], INTEGERS),
}  # fmt: skip


def _written(x, write):
    x = x.clone()
    write(x)
    return x


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name):
    function, x = CASES[name]
    model = to_jax(Function(function))
    narrow = x.astype(np.int32) if x.dtype == np.int64 else x
    got = jax.jit(lambda x: model.apply(model.params, model.buffers, x)[0])(narrow)
    np.testing.assert_array_equal(got, function(torch.from_numpy(x)).numpy())


def test_bounds_hold_for_every_rule():
    """A bound that is too narrow would leave a number in 32 bits that do not hold it."""
    rows = torch.tensor([0, 0, 1, 1, 2])

    def results(x):
        return (
            (x % 1024) | (x * 2), (x ^ -1) * 3, (~x) + (~x), (x * 4) & 0x7FFFFFFF, (x << 2) >> 1,
            (x * 3) // -2, torch.div(x * 3, -7, rounding_mode="trunc"), (x * 5) % -7,
            torch.fmod(x, -7) * 600000000, (x % 5 - 2) ** 3 * 100000000, (x % 9) ** 12,
            (x * 3).clamp(torch.zeros(5).long(), x), (x * 4).amin(), torch.where(x > 0, x * 4, -x),
            torch.maximum(x * 2, x), (x * 2).masked_scatter(x > 0, x * 3), (x * 8).sign(),
            torch.zeros(5).long().index_add(0, rows, x, alpha=3), x[None] @ x[:, None],
            x.abs().square(), (x * 2).gather(0, rows), torch.full((5,), 7) * x, (x * 2).roll(1),
            (x % 256).to(torch.uint8) * x, -(x * 2),
            torch.ones(5).long().scatter(0, torch.arange(5), x) * 4, (x * 2).reshape(1, 5).tril(),
            x.clamp(0) - (-5), torch.rsub(x.clamp(0), -5), (x % 3 - x % 5 & 255) * 100000000,
            torch.addr(torch.ones(5, 5).long(), x, x),
            torch.zeros(2).long().index_put(
                (x.repeat(9) * 0,), torch.tensor(100000000), accumulate=True
            ),
        )  # fmt: skip

    model = to_jax(Function(results))
    got = jax.jit(lambda x: model.apply({}, {}, x)[0])(INTEGERS.astype(np.int32))
    for number, (one, expected) in enumerate(
        zip(got, results(torch.from_numpy(INTEGERS)), strict=True)
    ):
        np.testing.assert_array_equal(one, expected.numpy(), err_msg=f"result {number}")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(0, 1000) * 640 + 3,
        lambda x: x % 64 * 4 + x % 4,
        lambda x: (x > 0).cumsum(-1) - 1,
        lambda x: (x > 0).long().cumsum(0).masked_fill(x < 0, 1) + torch.arange(5),
        lambda x: (x > 0).sum() * 4 + x.argmax() - 5,
        lambda x: torch.arange(x.shape[0])[x % 5] + 2,
        lambda x: F.one_hot(x % 3, 3).sum(0).cumsum(0) - 1,
        lambda x: ((x > 3).long() * 2 ** torch.arange(5)).sum(),
        lambda x: torch.bucketize(x, torch.tensor([1, 5])) * 64 + x.clone().clamp_(0, 63) // 8,
        lambda x: (x & 255) + (x >> 24 & 127) + x.sort()[1] * 3,
        lambda x: torch.zeros(9).long().scatter_add(0, x % 9, torch.ones(5).long()).cumsum(0),
    ],
)
def test_numbers_within_32_bits_stay_there(function):
    model = to_jax(Function(function))
    shapes = jax.eval_shape(
        lambda x: model.apply(model.params, model.buffers, x)[0], INTEGERS.astype(np.int32)
    )
    assert shapes.dtype == np.int32


def test_a_number_that_32_bits_do_not_hold_is_refused():
    model = to_jax(Function(lambda x: x * 2654435761 % 4096))
    with pytest.raises(RuntimeError, match="beyond int32"):
        model.apply(model.params, model.buffers, INTEGERS.astype(np.int32))


LOOPS = {
    "while_loop": (
        lambda x: while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y + y), (torch.tensor(0), x)
        )[1],
        lambda x: x * 8,
    ),
    "scan": (lambda x: scan(lambda c, y: (c + y, c + y), x[0] * 0, x)[1], lambda x: x.cumsum(0)),
    "associative_scan": (
        lambda x: associative_scan(torch.add, x, 0, combine_mode="generic"),
        lambda x: x.cumsum(0),
    ),
    "cond": (
        lambda x: torch.cond(x[0] > 0, lambda y: y + y, lambda y: y % 5, (x,)),
        lambda x: x + x,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_carry_64_bits_where_a_round_needs_them(name):
    function, plain = LOOPS[name]
    model = to_jax(Function(function))
    got = jax.jit(lambda x: model.apply({}, {}, x)[0])(INTEGERS.astype(np.int32))
    np.testing.assert_array_equal(got, plain(torch.from_numpy(INTEGERS)).numpy())


def test_a_loop_whose_numbers_fit_stays_in_32_bits():
    model = to_jax(Function(lambda x: scan(lambda c, y: ((c + y) % 7, c), x[0] % 7, x)))
    last, _ = jax.eval_shape(lambda x: model.apply({}, {}, x)[0], INTEGERS.astype(np.int32))
    assert last.dtype == np.int32


class Counts(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.register_buffer("count", torch.tensor(5))
        self.step = step

    def forward(self, x):
        self.count.copy_(self.step(self.count, x))  # pyright: ignore
        return x


@pytest.mark.parametrize("step", [lambda c, x: c + 1, lambda c, x: c + (x > 0).sum()])
def test_counters_in_buffers_stay_in_32_bits(step):
    model = to_jax(Counts(step))
    _, after = jax.jit(lambda b, x: model.apply({}, b, x))(
        model.buffers, np.array([1, 2], np.int32)
    )
    assert after["count"].dtype == np.int32
    assert int(after["count"]) == int(step(torch.tensor(5), torch.tensor([1, 2])))


def test_a_buffer_that_may_need_64_bits_is_refused():
    model = to_jax(Counts(lambda c, x: c * 1103515245 + 12345))
    with pytest.raises(UnsupportedTorchError, match="buffer count that may need 64 bits"):
        model.apply({}, model.buffers, np.array([1, 2], np.int32))


ORDERS = {
    "kthvalue": lambda x: x.kthvalue(4),
    "kthvalue along an axis": lambda x: x.reshape(2, 3).kthvalue(2, 0, keepdim=True),
    "median": lambda x: x.reshape(2, 3).median(1),
    "nanmedian": lambda x: x.reshape(2, 3).nanmedian(1, keepdim=True),
    "least": lambda x: x.topk(4, largest=False),
    "greatest": lambda x: x.reshape(2, 3).topk(2, 0),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.float32])
@pytest.mark.parametrize("name", ORDERS)
def test_orders_of_the_greatest_and_least_numbers(name, dtype):
    if dtype.is_floating_point:
        x = torch.tensor([3.0, float("nan"), -float("inf"), 5, float("inf"), 0])
    else:
        low = torch.iinfo(torch.int32 if dtype == torch.int64 else dtype)
        x = torch.tensor([low.min, low.max, low.max - 4, 5, 3, 0 if low.min else 1], dtype=dtype)
    model = to_jax(Function(ORDERS[name]))
    array = x.numpy().astype(np.int32) if dtype == torch.int64 else x.numpy()
    got = jax.jit(lambda x: model.apply({}, {}, x)[0])(array)
    for one, expected in zip(got, ORDERS[name](x), strict=True):
        np.testing.assert_array_equal(one, expected.numpy())


def test_with_x64_a_buffer_has_64_bits():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.tensor(2**40))

        def forward(self, x):
            self.seen += x.sum()
            return x * self.seen

    with jax.enable_x64(True):
        model = to_jax(Counting())
        got, buffers = model.apply(model.params, model.buffers, INTEGERS)
    twin = Counting()
    np.testing.assert_array_equal(got, twin(torch.from_numpy(INTEGERS)).numpy())
    assert int(buffers["seen"]) == int(twin.seen)
