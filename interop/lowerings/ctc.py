"""Connectionist temporal classification (Graves et al., 2006), as a scan over time.

Letters: T time, N batch, C classes, S target symbols, P places: targets with blanks around them.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from jaxsr.interop._core.dtypes import nan_where
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles, overrides
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace

_NAMES = ("log_probs", "targets", "input_lengths", "target_lengths")
_IMPOSSIBLE = -1e30
"""A logarithm of probability 0 that can be differentiated."""


def _negative_log_likelihood(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    blank: int,
) -> jax.Array:
    """(T, N, C), (N, S), (N,), (N,) -> (N,)."""
    batch, symbols = targets.shape
    labels = jnp.full((batch, 2 * symbols + 1), blank).at[:, 1::2].set(targets)
    earlier = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    may_skip = (labels != blank) & (labels != earlier)
    emitted = jnp.take_along_axis(log_probs, labels[None], axis=2)  # (T, N, P)

    def moved(alpha: jax.Array, places: int) -> jax.Array:
        padded = jnp.pad(alpha, ((0, 0), (places, 0)), constant_values=_IMPOSSIBLE)
        return padded[:, : alpha.shape[1]]

    def step(alpha: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        time, emission = inputs
        skipped = jnp.where(may_skip, moved(alpha, 2), _IMPOSSIBLE)
        paths = jnp.stack([alpha, moved(alpha, 1), skipped])
        after = jax.nn.logsumexp(paths, axis=0) + emission
        after = jnp.maximum(after, _IMPOSSIBLE)
        return jnp.where((time < input_lengths)[:, None], after, alpha), None

    # Before the first step a path stands in front of the first blank, or of the first symbol.
    start = jnp.full((batch, labels.shape[1]), _IMPOSSIBLE, log_probs.dtype).at[:, 0].set(0.0)
    times = jnp.arange(log_probs.shape[0])
    alpha, _ = jax.lax.scan(step, start, (times, emitted))
    last = 2 * target_lengths[:, None]
    at_blank = jnp.take_along_axis(alpha, last, axis=1)[:, 0]
    at_symbol = jnp.take_along_axis(alpha, jnp.maximum(last - 1, 0), axis=1)[:, 0]
    at_symbol = jnp.where(target_lengths > 0, at_symbol, _IMPOSSIBLE)
    total = jnp.logaddexp(at_blank, at_symbol)
    return jnp.where(total > _IMPOSSIBLE / 2, -total, jnp.inf)


def ctc_loss(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    *,
    blank: int,
    zero_infinity: bool,
) -> jax.Array:
    """The loss of every sample, with torch's gradient.

    Args:
      log_probs: (T, N, C).
      targets: (N, S), or the targets of all samples in one row.
      input_lengths, target_lengths: (N,).
      blank: class that separates symbols.
      zero_infinity: targets that do not fit their input give 0, without a gradient.

    Lengths that torch refuses give NaN.
    """
    if targets.ndim == 1:
        starts = jnp.cumsum(target_lengths) - target_lengths
        places = starts[:, None] + jnp.arange(targets.shape[0])
        targets = targets[jnp.minimum(places, max(targets.shape[0] - 1, 0))]

    values: jax.Array = _losses(  # pyright: ignore[reportAssignmentType]
        log_probs, (targets, input_lengths, target_lengths), blank, zero_infinity
    )
    values = jnp.where(jnp.isfinite(values), values, 0.0) if zero_infinity else values
    lengths = (input_lengths, log_probs.shape[0]), (target_lengths, targets.shape[1])
    refused = [(length < 0) | (length > most) for length, most in lengths]
    return nan_where(refused[0] | refused[1], values)


_Labels = tuple[jax.Array, jax.Array, jax.Array]
"""Targets, input lengths and target lengths. Arguments, not a closure: the derivative of a jitted
function is traced when the values of a closure are gone."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _losses(log_probs: jax.Array, labels: _Labels, blank: int, zero_infinity: bool) -> jax.Array:
    del zero_infinity
    return _negative_log_likelihood(log_probs, *labels, blank)


def _losses_forward(
    log_probs: jax.Array, labels: _Labels, blank: int, zero_infinity: bool
) -> tuple[jax.Array, tuple]:
    del zero_infinity
    values, pullback = jax.vjp(lambda p: _negative_log_likelihood(p, *labels, blank), log_probs)
    return values, (log_probs, labels, values, pullback)


def _losses_backward(
    blank: int, zero_infinity: bool, residuals: tuple, cotangent: jax.Array
) -> tuple[jax.Array, None]:
    del blank
    log_probs, (_, input_lengths, _), values, pullback = residuals
    possible = jnp.isfinite(values)
    (gradient,) = pullback(jnp.where(possible, cotangent, 0.0))
    # torch's gradient is that of the logits in front of a softmax.
    within = jnp.arange(log_probs.shape[0])[:, None, None] < input_lengths[:, None]
    gradient = gradient + jnp.exp(log_probs) * cotangent[:, None]
    impossible = 0.0 if zero_infinity else jnp.nan
    gradient = jnp.where(possible[:, None], gradient, impossible)
    return jnp.where(within, gradient, 0.0), None


_losses.defvjp(_losses_forward, _losses_backward)


@overrides(F.ctc_loss)
def _with_tensor_lengths(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """Lengths in a tuple become tensors: torch's own conversion cannot be traced."""
    names = (*_NAMES, "blank", "reduction", "zero_infinity")
    call = {**dict(zip(names, args, strict=False)), **kwargs}
    for name in ("input_lengths", "target_lengths"):
        if not isinstance(call[name], torch.Tensor):
            call[name] = torch.tensor(call[name])
    return func(**call)


@handles(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def _ctc_loss(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> tuple[JaxTensor, JaxTensor]:
    # torch knows no shapes of it beforehand, though the lengths do not matter to them.
    names = (*_NAMES, "blank", "zero_infinity")
    call = {"blank": 0, "zero_infinity": False, **dict(zip(names, args, strict=False)), **kwargs}
    log_probs = call["log_probs"]
    arrays = [
        call[name].array() if isinstance(call[name], JaxTensor) else jnp.asarray(call[name])
        for name in _NAMES
    ]
    arrays[2:] = [jnp.atleast_1d(lengths) for lengths in arrays[2:]]  # of one sample
    values = ctc_loss(*arrays, blank=call["blank"], zero_infinity=call["zero_infinity"])
    losses = trace.wrap(values, log_probs.dtype)
    losses.needs_grad = log_probs.needs_grad and torch.is_grad_enabled()
    return losses, trace.wrap(jnp.zeros(log_probs.shape[1]), log_probs.dtype)
