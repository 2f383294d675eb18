"""Beam search: the likeliest outputs as a whole, several of which run side by side.

The steps and the scores are those of `GenerationMixin._beam_search` of transformers 5, which the
tests compare against. Shapes: P prompts, K beams of each, C candidates of a step, N tokens.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.generation.decoder import UNFILLED
from jaxsr.generation.logits_processors import (
    History,
    Settings,
    has_processors,
    is_stop,
    processed_logits,
)
from jaxsr.generation.options import SamplingOptions

Beams = dict[str, jax.Array]
"""The state of a search, see `no_beams`."""

_EARLY_STOPPING = ("false", "true", "never")
# Subtracted from a score that must not be chosen.
_PENALTY = 1.0e9


def beam_settings(options: SamplingOptions, room: int) -> dict[str, Any]:
    """The settings of a search besides `settings_of`.

    Args:
      options: of the command.
      room: tokens that the buffers hold.
    """
    lengths = np.arange(1, room + 1, dtype=np.float64)
    divisors = np.concatenate(([1.0], lengths**options.length_penalty))
    return {
        "length_divisors": divisors.astype(np.float32),
        "early_stopping": np.int32(_EARLY_STOPPING.index(options.early_stopping)),
        "longest_is_best": np.bool_(options.length_penalty > 0),
    }


def no_beams(prompts: int, beams: int, room: int) -> Beams:
    """The state before the first token."""
    outputs = jnp.full((prompts, beams, room), UNFILLED, jnp.int32)
    return {
        "count": jnp.int32(0),
        "outputs": outputs,
        # Only the first beam counts at first, for all are equal.
        "scores": jnp.zeros((prompts, beams)).at[:, 1:].set(-_PENALTY),
        "ended_outputs": outputs,
        "ended_scores": jnp.full((prompts, beams), -_PENALTY),
        "ended": jnp.zeros((prompts, beams), bool),
        "may_improve": jnp.ones((prompts, 1), bool),
        "all_ended": jnp.zeros((), bool),
    }


def goes_on(state: Beams, settings: Settings) -> jax.Array:
    """Whether a further step can change the result, a scalar."""
    is_full = state["ended"].all() & (settings["early_stopping"] == 1)
    return state["may_improve"].any() & ~is_full & ~state["all_ended"]


def step(
    logits_BV: jax.Array, prompt_BT: jax.Array, state: Beams, settings: Settings
) -> tuple[Beams, jax.Array, jax.Array]:
    """Extends each beam by a token.

    Args:
      logits_BV: of the beams, B = P * K rows.
      prompt_BT: their prompts.
      state: of the search.
      settings: `settings_of` and `beam_settings`.

    Returns:
      The state, and for each of the new beams the row that it goes on from and its token, (B,).
    """
    prompts, beams, room = state["outputs"].shape
    rows, vocabulary = logits_BV.shape
    count = state["count"]
    outputs_BN = state["outputs"].reshape(rows, room)
    history = History(prompt_BT, outputs_BN, jnp.full(rows, count))
    scores_BV = jax.lax.cond(
        has_processors(settings),
        processed_logits,
        lambda x, *_: x,
        jax.nn.log_softmax(logits_BV, -1),
        history,
        settings,
    )
    sums_PX = (scores_BV.reshape(prompts, beams, -1) + state["scores"][..., None]).reshape(
        prompts, -1
    )
    # So many that beams remain even where each beam's likeliest tokens all end it.
    candidates = min((1 + len(settings["stop"])) * beams, beams * vocabulary)
    scores_PC, index_PC = jax.lax.top_k(sums_PX, candidates)
    parent_PC, token_PC = index_PC // vocabulary, index_PC % vocabulary
    outputs_PCN = _taken(state["outputs"], parent_PC).at[:, :, count].set(token_PC)
    ends_PC = is_stop(token_PC.reshape(-1), settings).reshape(token_PC.shape)
    ends_PC |= count + 1 >= settings["max_new_tokens"]

    running_PC = scores_PC - _PENALTY * ends_PC
    _, next_PK = jax.lax.top_k(running_PC, beams)
    changed = {
        "count": count + 1,
        "outputs": _taken(outputs_PCN, next_PK),
        "scores": _taken(running_PC, next_PK),
        "all_ended": ends_PC.all(),
        **_ended(state, outputs_PCN, scores_PC, ends_PC, settings),
    }
    best_P1 = changed["scores"][:, :1] / jnp.where(
        (settings["early_stopping"] == 2) & settings["longest_is_best"],
        settings["length_divisors"][settings["max_new_tokens"]],
        settings["length_divisors"][count + 1],
    )
    worst_PK = jnp.where(changed["ended"], changed["ended_scores"].min(1, keepdims=True), -_PENALTY)
    improves_P1 = (best_P1 > worst_PK).any(1, keepdims=True)
    changed["may_improve"] = state["may_improve"] & improves_P1
    parent_PK, token_PK = _taken(parent_PC, next_PK), _taken(token_PC, next_PK)
    parent_PK += jnp.arange(prompts)[:, None] * beams
    return changed, parent_PK.reshape(-1), token_PK.reshape(-1)


def _ended(
    state: Beams,
    outputs_PCN: jax.Array,
    scores_PC: jax.Array,
    ends_PC: jax.Array,
    settings: Settings,
) -> Beams:
    """The best outputs that have ended, among the earlier ones and this step's."""
    beams = state["ended"].shape[1]
    # Candidates after the first K are there to go on, not to end.
    ends_PC = ends_PC & (jnp.arange(ends_PC.shape[1]) < beams)
    scores_PC = scores_PC / settings["length_divisors"][state["count"] + 1]
    full_P1 = state["ended"].all(1, keepdims=True) & (settings["early_stopping"] == 1)
    scores_PC = scores_PC - _PENALTY * full_P1
    scores_PC = scores_PC - _PENALTY * ~state["may_improve"]
    scores_PC = scores_PC - _PENALTY * ~ends_PC
    scores_PX = jnp.concatenate((state["ended_scores"], scores_PC), 1)
    _, best_PK = jax.lax.top_k(scores_PX, beams)
    merged = {
        "ended_outputs": jnp.concatenate((state["ended_outputs"], outputs_PCN), 1),
        "ended_scores": scores_PX,
        "ended": jnp.concatenate((state["ended"], ends_PC), 1),
    }
    return {name: _taken(array, best_PK) for name, array in merged.items()}


def _taken(array: jax.Array, index: jax.Array) -> jax.Array:
    """Entries of axis 1 by number, for each prompt."""
    index = index.reshape(*index.shape, *[1] * (array.ndim - 2))
    return jnp.take_along_axis(array, index, 1)


@partial(jax.jit, static_argnums=(0, 1, 2))
def begin_on_host(prompts: int, beams: int, room: int) -> Any:
    """`no_beams`, for an engine that is not JAX."""
    return no_beams(prompts, beams, room)


@jax.jit
def step_on_host(
    logits_BV: jax.Array, prompt_BT: jax.Array, state: Beams, settings: Settings
) -> tuple[Beams, jax.Array, jax.Array, jax.Array]:
    """`step` and whether to go on, for an engine that is not JAX."""
    state, parent_B, token_B = step(logits_BV, prompt_BT, state, settings)
    return state, parent_B, token_B, goes_on(state, settings)
