"""Draws from `random` and NumPy in forward: refused where they decide something."""

import os
import random
import secrets
import uuid

import jax
import numpy as np
import pytest

from jaxsr.interop import UnsupportedTorchError, to_jax
from tests.interop.core.function_net import FunctionNet

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "draw", [random.random, lambda: np.random.uniform(0, 1), random.SystemRandom().random]
)
@pytest.mark.parametrize(
    "branch",
    [
        lambda x, draw: x if draw < 0.001 else x * 2,
        lambda x, draw: x if draw < 0.999 else x * 2,
        lambda x, draw: x * [1.0, 2.0][1 + (draw < 0.001)],
    ],
    ids=["rare", "frequent", "fails"],
)
def test_a_rare_branch_on_a_draw_is_refused(draw, branch):
    jm = to_jax(FunctionNet(lambda s, x: branch(x, draw())))
    with pytest.raises(UnsupportedTorchError, match="draws from"):
        jax.eval_shape(lambda x: jm.apply(jm.params, jm.buffers, x)[0], X)


def test_draws_that_decide_nothing_pass_and_go_on():
    random.seed(0)
    expected = [random.random() for _ in range(2)]
    random.seed(0)
    jm = to_jax(FunctionNet(lambda s, x: x if random.random() < 0 else x * 2))
    np.testing.assert_array_equal(jm.apply(jm.params, jm.buffers, X)[0], X * 2)
    assert random.random() in expected


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.default_rng().random(),
        lambda: secrets.randbelow(1000),
        lambda: os.urandom(1)[0],
    ],
)
@pytest.mark.parametrize("train", [True, False])
def test_draws_from_the_operating_system_are_refused(draw, train):
    jm = to_jax(FunctionNet(lambda s, x: x * draw()))
    with pytest.raises(UnsupportedTorchError, match=r"draws from os.urandom \(.*something else"):
        jm.apply(jm.params, jm.buffers, X, train=train)


NAMES = random.SystemRandom()


def test_forward_may_name_a_generator_of_the_operating_system():
    def forward(s, x):
        return x * 2 if isinstance(NAMES, random.Random) else x

    for train in (False, True):
        jm = to_jax(FunctionNet(forward))
        np.testing.assert_array_equal(jm.apply(jm.params, jm.buffers, X, train=train)[0], X * 2)


def test_a_function_that_is_kept_in_a_trace_draws_afterwards():
    functions = []

    def keeps(s, x):
        functions.append(os.urandom)  # as a module does that is imported there
        return x * 2

    jm = to_jax(FunctionNet(keeps))
    jm.apply(jm.params, jm.buffers, X)
    for urandom in functions:
        assert len(urandom(4)) == 4 and urandom(16) != urandom(16)


def test_names_may_be_drawn_from_it_in_training():
    names = []

    def named(s, x):
        names.append(uuid.uuid4().hex)
        return x * 2

    jm = to_jax(FunctionNet(named))
    np.testing.assert_array_equal(jm.apply(jm.params, jm.buffers, X, train=True)[0], X * 2)
    assert os.urandom(16) != os.urandom(16)
    assert len(set(names)) == len(names)
