"""Choosing the next token: greedy, or drawn after temperature, top-k and top-p.

Every request draws with its own key, folded with the number of the token it draws: what it gets
depends on neither the batch nor its place in it. Filters follow the logits processors of
`transformers`, which the tests compare against.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.generation.options import SamplingOptions


def request_keys(seed: int | jax.Array, requests: jax.Array) -> jax.Array:
    """Key data (B, 2) of requests by their numbers (B,)."""
    root = jax.random.key(seed)
    return jax.vmap(lambda number: jax.random.key_data(jax.random.fold_in(root, number)))(requests)


def filtered_logits(logits_BV: jax.Array, options: SamplingOptions) -> jax.Array:
    """Logits over the temperature, minus infinity where a filter drops the token."""
    logits_BV = logits_BV / options.temperature
    if options.top_k is not None and options.top_k < logits_BV.shape[-1]:
        least_B1 = jax.lax.top_k(logits_BV, options.top_k)[0][:, -1:]
        logits_BV = jnp.where(logits_BV < least_B1, -jnp.inf, logits_BV)
    if options.top_p is not None and options.top_p < 1:
        order_BV = jnp.argsort(-logits_BV, axis=-1)
        sorted_BV = jnp.take_along_axis(logits_BV, order_BV, -1)
        weight_BV = jax.nn.softmax(sorted_BV, -1)
        before_BV = jnp.cumsum(weight_BV, -1) - weight_BV
        # The likeliest stays even where rounding puts `before` above a tiny top_p.
        keep_BV = (before_BV < options.top_p).at[:, 0].set(True)
        back_BV = jnp.argsort(order_BV, axis=-1)
        keep_BV = jnp.take_along_axis(keep_BV, back_BV, -1)
        logits_BV = jnp.where(keep_BV, logits_BV, -jnp.inf)
    return logits_BV


def choose(
    logits_BV: jax.Array, keys_B2: jax.Array, number: jax.Array, options: SamplingOptions
) -> jax.Array:
    """The next token of each row, (B,) int32.

    Args:
      logits_BV: float32 logits.
      keys_B2: of `request_keys`; unused when greedy.
      number: how many tokens each row has generated before this one.
      options: static; decides what is compiled.
    """
    if options.greedy:
        return jnp.argmax(logits_BV, -1).astype(jnp.int32)
    logits_BV = filtered_logits(logits_BV, options)

    def draw(logits_V: jax.Array, key_data: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(key_data), number)
        return jax.random.categorical(key, logits_V)

    return jax.vmap(draw)(logits_BV, keys_B2).astype(jnp.int32)


def choose_on_host(
    logits_BV: np.ndarray, requests_B: np.ndarray, number: int, options: SamplingOptions
) -> np.ndarray:
    """`choose` on JAX's CPU, for an engine that is not JAX: the same draws from the same keys."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        keys_B2 = request_keys(options.seed, jnp.asarray(requests_B))
        chosen = _choose(jnp.asarray(logits_BV), keys_B2, jnp.int32(number), options)
    return np.asarray(chosen)


_choose = partial(jax.jit, static_argnums=3)(choose)
