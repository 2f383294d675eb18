"""Filters against the logits processors of `transformers`; draws against their probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.sampling import choose, choose_on_host, filtered_logits, request_keys

LOGITS = 3 * np.random.default_rng(0).standard_normal((5, 200), dtype=np.float32)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 7, 1000])
@pytest.mark.parametrize("top_p", [None, 0.01, 0.5, 0.9, 1.0])
def test_filters_keep_what_transformers_keeps(temperature, top_k, top_p):
    process = pytest.importorskip("transformers").generation.logits_process
    want = process.TemperatureLogitsWarper(temperature)(None, torch.from_numpy(LOGITS))
    if top_k is not None:
        want = process.TopKLogitsWarper(min(top_k, 200))(None, want)
    if top_p is not None:
        want = process.TopPLogitsWarper(top_p)(None, want)
    options = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p)
    got = jax.jit(filtered_logits, static_argnums=1)(jnp.asarray(LOGITS), options)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_draws_follow_the_filtered_probabilities():
    options = SamplingOptions(temperature=0.7, top_k=6)
    count = 20000
    rows = jnp.broadcast_to(LOGITS[0], (count, 200))
    keys = request_keys(0, jnp.arange(count))
    drawn = np.bincount(choose(rows, keys, jnp.int32(0), options), minlength=200) / count
    want = torch.softmax(torch.from_numpy(np.array(filtered_logits(rows[:1], options)))[0], 0)
    # Five standard deviations of a count of 20000 draws.
    np.testing.assert_allclose(drawn, want, atol=5 * 0.5 / np.sqrt(count))
    assert (drawn[want.numpy() == 0] == 0).all()


def test_a_draw_depends_on_seed_request_and_number_alone():
    options = SamplingOptions(temperature=1.0)
    keys = request_keys(0, jnp.arange(5))
    together = choose(jnp.asarray(LOGITS), keys, jnp.int32(3), options)
    for row in range(5):
        alone = choose_on_host(LOGITS[row : row + 1], np.array([row]), 3, options)
        assert alone[0] == together[row]
    same = jnp.broadcast_to(LOGITS[0], (64, 200))
    for keys, number in (
        (request_keys(1, jnp.arange(64)), 3),
        (request_keys(0, jnp.arange(64)), 4),
    ):
        other = choose(same, keys, jnp.int32(number), options)
        first = choose(same, request_keys(0, jnp.arange(64)), jnp.int32(3), options)
        assert (other != first).any()
        assert len(set(np.asarray(other).tolist())) > 5  # requests draw differently


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1}, "temperature must be finite and not below 0, got -1"),
        ({"temperature": float("nan")}, "temperature must be finite"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
    ],
)
def test_options_say_what_is_wrong(fields, message):
    with pytest.raises(ValueError, match=message):
        SamplingOptions(**fields)
