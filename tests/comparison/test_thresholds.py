"""Thresholds against rounding as it happens, and alignment against streams made by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxsr.comparison.calls import Call, Operand, Result
from jaxsr.comparison.compare_traces import Pair, align
from jaxsr.comparison.metrics import error_metrics
from jaxsr.comparison.op_recorder import OpRecorder, StatisticsObserver
from jaxsr.comparison.thresholds import local_threshold, pair_roundoff, reduction_length
from jaxsr.interop.host_arrays import to_numpy

SINGLE, HALF = 2.0**-24, 2.0**-8


def calls_of(function, *tensors):
    """The calls that some torch code makes."""
    ear = StatisticsObserver(to_numpy)
    with torch.no_grad(), OpRecorder(ear)(torch.nn.Module(), tensors, {}):
        function(*tensors)
    return [record.call for record in ear.records]


@pytest.mark.parametrize(
    ("function", "shapes", "length"),
    [
        (F.linear, [(2, 7), (5, 7)], 7),
        (torch.matmul, [(3, 4, 6), (3, 6, 2)], 6),
        (lambda a, b: a @ b, [(4, 6), (6, 2)], 6),
        (torch.addmm, [(5,), (4, 6), (6, 5)], 6),
        (F.conv2d, [(1, 6, 9, 9), (8, 6, 3, 3)], 54),
        (lambda x, w: F.conv2d(x, w, groups=6), [(1, 6, 9, 9), (6, 1, 3, 3)], 9),
        (F.conv_transpose2d, [(1, 6, 5, 5), (6, 4, 3, 3)], 54),
        (lambda x: torch.softmax(x, -1), [(3, 11)], 11),
        (lambda x: F.layer_norm(x, (11,)), [(3, 11)], 11),
        (F.instance_norm, [(2, 3, 4, 5)], 20),
        (lambda x: x.mean((2, 3)), [(2, 3, 4, 5)], 20),
        (lambda x: x.sum(), [(6, 5)], 30),
        (lambda x: F.avg_pool2d(x, 2), [(1, 2, 6, 6)], 4),
        (torch.relu, [(4, 4)], 1),
        (lambda x: x.transpose(0, 1), [(4, 5)], 1),
        (lambda a, b: a + b, [(4, 5), (5,)], 1),
    ],
)
def test_reduction_length(function, shapes, length):
    (call,) = calls_of(function, *(torch.ones(shape) for shape in shapes))
    assert reduction_length(call) == length


@pytest.mark.parametrize("length", [8, 500, 20_000])
@pytest.mark.parametrize("positive", [False, True])
def test_sums_in_any_order_are_within_the_threshold(length, positive):
    """One after the other is the worst order that anybody uses."""
    rng = np.random.default_rng(length)
    x, w = (rng.normal(size=(40, length)).astype(np.float32) for _ in range(2))
    if positive:
        x, w = np.abs(x), np.abs(w)
    exact = (x.astype(np.float64) * w).sum(-1)
    chained = np.cumsum(x * w, -1, dtype=np.float32)[:, -1]
    pairwise = (x * w).sum(-1)
    call = Call(
        order=0, step=0, path="", operation="linear", nth=0,
        operands=(Operand("input", "0", x.shape, "float32"),
                  Operand("parameter", "w", (1, length), "float32")),
        results=(Result((40, 1), "float32"),),
    )  # fmt: skip
    threshold = local_threshold(call, call, SINGLE)
    assert threshold == 16 * SINGLE * math.sqrt(length)
    for one in (chained, pairwise):
        assert error_metrics(exact, one).worst < threshold
    # And a weight off by 1e-3 is not.
    if length <= 500:
        assert error_metrics(exact, pairwise * np.float32(1.001)).worst > threshold


def call_in(dtype):
    result = Result((3,), dtype)
    operand = Operand("operation", "x", (3,), dtype)
    return Call(
        order=0, step=0, path="", operation="mul", nth=0, operands=(operand,), results=(result,)
    )


def test_a_cast_that_nobody_asked_for_is_no_excuse():
    single, half = call_in("float32"), call_in("bfloat16")
    assert pair_roundoff(single, half, SINGLE) == SINGLE
    assert pair_roundoff(single, half, HALF) == HALF  # the side was asked to run in bfloat16
    assert pair_roundoff(half, half, SINGLE) == HALF  # the model itself casts
    assert pair_roundoff(single, single, HALF) == SINGLE  # it widens, for a norm say


def stream(text):
    return [
        Call(order=k, step=0, path=c, operation="f", nth=0, operands=(), results=())
        for k, c in enumerate(text)
    ]


def test_alignment():
    assert align(stream("abc"), stream("abc")) == [Pair(0, 0), Pair(1, 1), Pair(2, 2)]
    assert align(stream("abcabd"), stream("abcad")) == [
        Pair(0, 0), Pair(1, 1), Pair(2, 2), Pair(3, 3), Pair(4, None), Pair(5, 4),
    ]  # fmt: skip
    assert align(stream("ad"), stream("abd")) == [Pair(0, 0), Pair(None, 1), Pair(1, 2)]
    assert align(stream(""), stream("x")) == [Pair(None, 0)]


def test_long_loops_are_aligned_by_the_number_of_the_call(monkeypatch):
    monkeypatch.setattr("jaxsr.comparison.compare_traces._MOST_EQUAL", 3)
    repeated = [replace(call, nth=nth) for nth, call in enumerate(stream("aaa"))]
    # The second call is missing, and not the last as by stretches.
    pairs = align(repeated, [repeated[0], repeated[2]])
    assert pairs == [Pair(0, 0), Pair(1, None), Pair(2, 1)]
