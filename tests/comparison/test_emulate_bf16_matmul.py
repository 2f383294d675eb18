"""Rounded operands against torch's own bfloat16, in float64 sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.emulate_bf16_matmul import emulate_bf16_matmul


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def rounded(x):
    return torch.from_numpy(x).bfloat16().double()


def test_matrix_products():
    a, b = drawn(5, 70), drawn(70, 3)
    want = (rounded(a) @ rounded(b)).numpy()
    np.testing.assert_allclose(emulate_bf16_matmul(jnp.matmul)(a, b), want, rtol=1e-5, atol=1e-5)
    assert np.abs(a @ b - want).max() > 1e-3


def test_convolutions():
    x, w = drawn(2, 3, 8, 8), drawn(4, 3, 3, 3)

    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")

    want = F.conv2d(rounded(x), rounded(w), padding=1).numpy()
    np.testing.assert_allclose(emulate_bf16_matmul(convolve)(x, w), want, rtol=1e-5, atol=1e-5)


def scanned(x, w):
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, length=3)[0]


def looped(x, w):
    return jax.lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h @ w), x)


def whiled(x, w):
    return jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (jnp.int32(0), x)
    )[1]


def branched(x, w):
    for _ in range(3):
        x = jax.lax.cond(x[0, 0] < 9, lambda h: jnp.tanh(h @ w), lambda h: h @ w, x)
    return x


def recomputed(x, w):
    step = jax.jit(jax.checkpoint(lambda h: jnp.tanh(h @ w)))
    return step(step(step(x)))


def with_a_rule_of_its_own(x, w):
    step = jax.custom_vjp(lambda h: jnp.tanh(h @ w))
    step.defvjp(lambda h: (step(h), None), lambda _, g: (g,))
    return step(step(step(x)))


@pytest.mark.parametrize(
    "function", (scanned, looped, whiled, branched, recomputed, with_a_rule_of_its_own)
)
def test_programs_within_programs(function):
    x, w = drawn(4, 6), drawn(6, 6, seed=1)
    want = torch.from_numpy(x)
    for _ in range(3):
        want = torch.tanh(rounded(want.float().numpy()) @ rounded(w))
    for run in (emulate_bf16_matmul(function), jax.jit(emulate_bf16_matmul(function))):
        np.testing.assert_allclose(run(x, w), want.float().numpy(), atol=1e-6)
        assert np.abs(run(x, w) - function(x, w)).max() > 1e-3


def test_what_a_tpu_does_not_round():
    a, b = drawn(5, 70), drawn(70, 3)

    def exact(a, b):
        return jnp.matmul(a, b, precision="highest")

    np.testing.assert_array_equal(emulate_bf16_matmul(exact)(a, b), exact(a, b))
    numbers = np.full((4, 4), 257)
    np.testing.assert_array_equal(
        emulate_bf16_matmul(jnp.matmul)(numbers, numbers), numbers @ numbers
    )
    np.testing.assert_array_equal(emulate_bf16_matmul(jnp.add)(a, a), a + a)


def test_an_unknown_program_is_refused():
    def solve(a, b):
        return jax.lax.custom_linear_solve(lambda x: a @ x, b, lambda _, b: b)

    with pytest.raises(ValueError, match=r"products inside .* cannot be rounded"):
        emulate_bf16_matmul(solve)(drawn(3, 3), drawn(3))


def test_sides_that_cannot():
    with pytest.raises(ValueError, match="bfloat16 is for engine=jax"):
        BackendSpec(engine="torch", precision="bfloat16")
    with pytest.raises(ValueError, match="give it to the second side, --b"):
        BackendSpec(precision="bfloat16").check_operations_alone()
