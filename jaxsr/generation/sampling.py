"""Choosing the next token: greedy, or drawn from the filtered logits.

Every request draws with its own key, folded with the number of the token it draws: its tokens
depend neither on the batch nor on its place in the batch.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.generation.logits_processors import (
    History,
    Settings,
    filtered_logits,
    has_processors,
    processed_logits,
)


def request_keys(seed: int | jax.Array, requests_B: jax.Array) -> jax.Array:
    """Key data (B, 2) of requests by their numbers; `seed` is one for all, or (B,)."""

    def key_of(seed: jax.Array, number: jax.Array) -> jax.Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.key(seed), number))

    seeds_B = jnp.broadcast_to(jnp.asarray(seed, jnp.int32), requests_B.shape)
    return jax.vmap(key_of)(seeds_B, requests_B)


_PARTS = 64
"""Parts of a vocabulary, whose maxima XLA's CPU computes side by side."""


def greedy(logits_BV: jax.Array) -> jax.Array:
    """The first of the largest logits, (B,) int32."""
    return jax.lax.platform_dependent(logits_BV, cpu=_greedy_by_parts, default=_greedy)


def _greedy(logits_BV: jax.Array) -> jax.Array:
    return jnp.argmax(logits_BV, -1).astype(jnp.int32)


def _greedy_by_parts(logits_BV: jax.Array) -> jax.Array:
    rows, count = logits_BV.shape
    if count % _PARTS:
        return _greedy(logits_BV)
    parts_BPN = logits_BV.reshape(rows, _PARTS, -1)
    part_B = jnp.argmax(parts_BPN.max(-1), -1)
    part_BN = jnp.take_along_axis(parts_BPN, part_B[:, None, None], 1)[:, 0]
    return (part_B * part_BN.shape[1] + jnp.argmax(part_BN, -1)).astype(jnp.int32)


def choose(
    logits_BV: jax.Array, keys_B2: jax.Array, history: History, settings: Settings
) -> jax.Array:
    """The next token of each row, (B,) int32.

    Args:
      logits_BV: float32 logits.
      keys_B2: of `request_keys`; unused when greedy.
      history: tokens of each row.
      settings: of `settings_of`. Values, not shapes: they never need another program.
    """

    def drawn(logits_BV: jax.Array) -> jax.Array:
        return jax.vmap(_draw)(filtered_logits(logits_BV, settings), keys_B2, history.count_B)

    def processed(logits_BV: jax.Array) -> jax.Array:
        logits_BV = processed_logits(logits_BV, history, settings)
        return jax.lax.cond(settings["temperature"] > 0, drawn, greedy, logits_BV)

    plain = (settings["temperature"] <= 0) & ~has_processors(settings)
    return jax.lax.cond(plain, greedy, processed, logits_BV)


def is_sound(logits_BV: jax.Array, chosen_B: jax.Array, *, greedy: bool) -> jax.Array:
    """Whether tokens could be chosen, (B,): the largest logit is finite, and none is NaN.

    Args:
      logits_BV: the network's logits.
      chosen_B: tokens that were chosen from them.
      greedy: they are the largest, of which NaN counts as one: nothing else is read.
    """
    if not greedy:
        return jnp.isfinite(logits_BV.max(-1))
    return jnp.isfinite(jnp.take_along_axis(logits_BV, chosen_B[..., None], -1)[..., 0])


def _draw(logits_V: jax.Array, key_data: jax.Array, number: jax.Array) -> jax.Array:
    key = jax.random.fold_in(jax.random.wrap_key_data(key_data), number)
    return jax.random.categorical(key, logits_V).astype(jnp.int32)


def log_probabilities(
    logits_BV: jax.Array, token_B: jax.Array, top: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The model's own log probabilities, before processors, temperature and filters.

    Args:
      logits_BV: the network's logits.
      token_B: tokens that were chosen.
      top: how many of the likeliest tokens to report.

    Returns:
      The chosen tokens' (B,), the likeliest ones' (B, top), and their ids.
    """
    all_BV = jax.nn.log_softmax(logits_BV, -1)
    chosen_B = jnp.take_along_axis(all_BV, token_B[:, None], 1)[:, 0]
    return chosen_B, *jax.lax.top_k(all_BV, top)


def choose_on_host(
    logits_BV: np.ndarray, keys_B2: np.ndarray | jax.Array, history: History, settings: Settings
) -> np.ndarray:
    """`choose` on JAX's CPU, for an engine that is not JAX: the same draws from the same keys."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return np.asarray(_choose(logits_BV, keys_B2, history, settings))


_choose = jax.jit(choose)
