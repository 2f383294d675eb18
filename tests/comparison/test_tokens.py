"""Token comparison against SciPy and closed forms."""

import numpy as np
import pytest
from scipy import special, stats

from jaxsr.comparison.tokens import compare_logits, first_divergence, in_words


def logits(seed=0, size=50):
    return np.random.default_rng(seed).normal(0, 3, (1, size)).astype(np.float32)


def test_divergence_is_scipys():
    a, b = logits(), logits() + 0.1 * logits(1)
    (step,) = compare_logits([(a, b)], rounding=1e-6)
    p, q = (special.softmax(x[0].astype(np.float64)) for x in (a, b))
    assert step.divergence == pytest.approx(stats.entropy(p, q), rel=1e-9)
    best = [set(np.argsort(-x[0])[:10].tolist()) for x in (a, b)]
    assert step.overlap == len(best[0] & best[1]) / 10
    top = np.sort(a[0])
    assert step.first_margin == pytest.approx(top[-1] - top[-2])


def test_equal_logits():
    (step,) = compare_logits([(logits(), logits())], rounding=1e-6)
    assert step.agree and not step.tie and step.divergence == 0 and step.overlap == 1


@pytest.mark.parametrize(
    ("gap", "moved", "rounding", "tie"),
    [
        (1e-6, 3e-6, 1e-4, True),  # closer than rounding moves logits
        (1e-6, 3e-6, 1e-8, False),  # rounding does not move them as far
        (0.25, 0.4, 0.3, True),  # bfloat16: rounding does
        (0.25, 2.0, 0.3, False),  # the second side is sure of the other token
    ],
)
def test_ties_are_what_rounding_explains(gap, moved, rounding, tie):
    a = np.zeros((1, 8))
    a[0, :2] = 1 + gap, 1
    b = a.copy()
    b[0, 0] -= moved
    (step,) = compare_logits([(a, b)], rounding=rounding)
    assert (step.first_token, step.second_token) == (0, 1)
    assert step.tie is tie


def test_first_divergence_in_words():
    a, b = logits(), logits()
    b[0, 3] = 100
    steps = compare_logits([(a, a), (a, b), (a, b)], rounding=1e-6)
    divergence = first_divergence(steps)
    assert divergence is not None and divergence.step == 1
    said = in_words(divergence, lambda token: f"<{token}>")
    assert "step 1" in said and "against <3>" in said and "no tie" in said
