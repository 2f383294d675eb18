"""Activation functions, with torch's gradient at kinks."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxsr.interop._core.dtypes import is_nan, widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop.lowerings.elementwise import clamp, with_partials
from jaxsr.xla_calls.stored import stored

# ---- rectifiers


_LEAST_STORED = 1 << 15
"""Elements from which on a pass over them costs more than the call that stores them."""


@jax.custom_jvp
def _rectified(x: jax.Array) -> jax.Array:
    return jnp.where((x > 0) | is_nan(x), x, jnp.zeros((), x.dtype))


@_rectified.defjvp
def _(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    (tangent,) = tangents
    out = _rectified(*primals)
    # The mask is taken from the result, as torch does. Stored, because XLA's CPU fusions would
    # write the input, read it for the mask, and read both for the result.
    if out.size >= _LEAST_STORED:
        out = stored(out)
    return out, jnp.where((out > 0) | is_nan(out), tangent, jnp.zeros((), tangent.dtype))


@lowers(aten.relu.default)
@jax.jit
def relu(x: jax.Array) -> jax.Array:
    return _rectified(x)


@lowers(aten.leaky_relu.default)
@jax.jit
def leaky_relu(x: jax.Array, slope: jax.Array | float = 0.01) -> jax.Array:
    return jnp.where(x > 0, x, x * slope)


@lowers(aten.elu.default)
def elu(x: jax.Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> jax.Array:
    """Also of CELU and SELU. Their slope below zero is not found from 1 + expm1, which cancels."""
    below = alpha * scale
    function = with_partials(
        lambda x: jnp.where(x > 0, x * scale, jnp.expm1(jnp.minimum(x, 0) * input_scale) * below),
        # At zero the slope's own slope is zero, as torch has it.
        lambda x, _: jnp.where(
            x > 0, scale, below * input_scale * jnp.exp(jnp.where(x >= 0, 0, x) * input_scale)
        ),
    )
    return function(widened(x)).astype(x.dtype)


lowers(aten.celu.default)(lambda x, alpha=1.0: elu(x, alpha, 1, 1 / alpha))


@lowers(aten.softplus.default)
def softplus(x: jax.Array, beta: float = 1, threshold: float = 20) -> jax.Array:
    wide = widened(x)
    is_line = wide * beta > threshold
    # Within, so that the exponential overflows in no gradient.
    within = jnp.where(is_line, 0, wide * beta)
    return jnp.where(is_line, wide, jnp.log1p(jnp.exp(within)) / beta).astype(x.dtype)


@lowers(aten._prelu_kernel.default)
def prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    # The weight's gradient is summed in float32. At zero the slope does not depend on it, as in
    # torch.
    wide = widened(weight)
    wide = jnp.where(x == 0, lax.stop_gradient(wide), wide)
    below = (wide * widened(x)).astype(x.dtype)
    return jnp.where(x > 0, x, below)


# ---- with bounds


@lowers(aten.hardtanh.default)
def hardtanh(x: jax.Array, low: float = -1.0, high: float = 1.0) -> jax.Array:
    # Its own backward excludes both bounds, unlike clamp's.
    inside = (x > low) & (x < high)
    return jnp.where(inside | is_nan(x), x, lax.stop_gradient(clamp(x, low, high)))


@lowers(aten.hardswish.default)
@jax.jit
def hardswish(x: jax.Array) -> jax.Array:
    return _hardswish(widened(x)).astype(x.dtype)


# Minus infinity times zero is NaN in torch, but its slope is zero.
_hardswish = with_partials(
    lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
    lambda x, _: jnp.where(x <= -3, 0, jnp.where(x >= 3, 1, x / 3 + 0.5)),
)


lowers(aten.relu6.default)(lambda x: hardtanh(x, 0, 6))


@lowers(aten.hardsigmoid.default)
def hardsigmoid(x: jax.Array) -> jax.Array:
    line = x / 6 + 0.5
    # Of NaN, too, the slope is zero.
    outside = jnp.where(x >= 3, 1, jnp.where(is_nan(x), lax.stop_gradient(x), 0))
    return jnp.where((x > -3) & (x < 3), line, outside.astype(x.dtype))


# ---- smooth

lowers(aten.silu.default)(jax.nn.silu)


@lowers(aten.glu.default)
def glu(x: jax.Array, dim: int = -1) -> jax.Array:
    values, gates = jnp.split(x, 2, dim)
    return values * jax.nn.sigmoid(gates)


def _gelu_slope(x: jax.Array, _: jax.Array) -> jax.Array:
    # 1 - erf(-x), not 1 + erf(x): XLA would keep common parts of both in memory between the forward
    # and the backward pass, several arrays as large as x. Its fusions are faster.
    cdf = 0.5 * (1 - lax.erf(-x * math.sqrt(0.5)))
    return cdf + x * (jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


_exact_gelu = with_partials(lambda x: x * (0.5 * (1 + lax.erf(x * math.sqrt(0.5)))), _gelu_slope)


_logistic = with_partials(jax.nn.sigmoid, lambda x, _: _logistic(x) * _logistic(-x))
"""With a slope of any order to the last digits: JAX's is y * (1 - y), which cancels near 1."""


_log_sigmoid = with_partials(
    lambda x: jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x))), lambda x, _: _logistic(-x)
)


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The function and the values that torch's backward needs; smooth at 0, unlike its terms."""
    wide = widened(x)
    return _log_sigmoid(wide).astype(x.dtype), jnp.exp(-jnp.abs(lax.stop_gradient(x)))


def _tanh_gelu(x: jax.Array) -> jax.Array:
    # (1 + tanh(z)) / 2 is sigmoid(2 z), and XLA computes sigmoid more exactly.
    return x * _logistic(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))


@lowers(aten.gelu.default)
def gelu(x: jax.Array, *, approximate: str = "none") -> jax.Array:
    wide = widened(x)
    out = _tanh_gelu(wide) if approximate == "tanh" else _exact_gelu(wide)
    return out.astype(x.dtype)
