"""Prompt lookup: greedy tokens several at a time, where a text repeats itself.

The tokens that followed the last ones earlier, in prompt or output, are proposed; one forward over
all of them says how many are right. Method: https://github.com/apoorvumang/prompt-lookup-decoding,
`prompt_lookup_num_tokens` of transformers.
"""

import jax
import jax.numpy as jnp

from jaxsr.generation.logits_processors import History, Settings, is_stop

# The longest repeated sequence that is looked for.
_LONGEST = 3


def proposed(history: History, count: int) -> jax.Array:
    """Proposed tokens, (B, count): after the longest and then latest match of the last tokens.

    Where the match's continuation reaches the end, it goes on from its beginning, as a text does
    that repeats itself. Token 0 where nothing matches.
    """
    tokens, end_B1 = history.tokens, history.end_B1
    place = jnp.arange(tokens.shape[1])
    length = jnp.zeros(tokens.shape, jnp.int32)
    matches = (place < end_B1 - 1) & (tokens >= 0)
    for back in range(_LONGEST):
        last_B1 = jnp.take_along_axis(tokens, jnp.maximum(end_B1 - 1 - back, 0), 1)
        matches &= (jnp.roll(tokens, back, 1) == last_B1) & (place >= back)
        length += matches
    best_B1 = jnp.argmax(length * tokens.shape[1] + place * (length > 0), 1, keepdims=True)
    period_B1 = jnp.maximum(end_B1 - 1 - best_B1, 1)
    at = best_B1 + 1 + jnp.arange(count) % period_B1
    exists_B1 = jnp.take_along_axis(length, best_B1, 1) > 0
    return jnp.where(exists_B1, jnp.maximum(jnp.take_along_axis(tokens, at, 1), 0), 0)


def accepted(
    proposed_BN: jax.Array, greedy_BT: jax.Array, most_B: jax.Array, settings: Settings
) -> jax.Array:
    """How many of the greedy tokens count, (B,).

    Args:
      proposed_BN: tokens fed after each row's last token.
      greedy_BT: the likeliest token after each that was fed, T = N + 1.
      most_B: tokens that each row may still have.
      settings: of `settings_of`.
    """
    agrees_BN = jnp.cumprod(proposed_BN == greedy_BT[:, :-1], 1)
    stops_BT = jax.vmap(is_stop, in_axes=(1, None), out_axes=1)(greedy_BT, settings)
    before_stop_B = jnp.cumprod(~stops_BT, 1).sum(1)
    return jnp.minimum(jnp.minimum(agrees_BN.sum(1), before_stop_B) + 1, most_B)
