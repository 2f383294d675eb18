"""Figures and differences against NumPy and against closed forms."""

import ml_dtypes
import numpy as np
import pytest

from jaxsr.comparison.compare_traces import sampled_error
from jaxsr.comparison.metrics import error_metrics
from jaxsr.comparison.statistics import SAMPLE, describe, sample_places


@pytest.mark.parametrize("shape", [(), (1,), (7, 9), (3, 40, 50)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.int32])
def test_figures_are_numpys(shape, dtype):
    array = (np.random.default_rng(0).normal(2, 3, shape) * 4).astype(dtype)
    got, wide = describe(array), array.astype(np.float64)
    assert got.count == array.size and got.beyond == 0
    want = (wide.mean(), wide.std(), wide.min(), wide.max(), np.linalg.norm(wide))
    np.testing.assert_allclose((got.mean, got.std, got.low, got.high, got.norm), want, rtol=1e-12)
    np.testing.assert_array_equal(got.sample, wide.ravel()[sample_places(array.size)])


def test_masks_and_not_numbers_are_counted_apart():
    low = float(np.finfo(np.float32).min)
    array = np.array([1.0, 3.0, low, np.inf, np.nan], np.float32)
    got = describe(array)
    assert (got.count, got.beyond, got.mean, got.rms) == (5, 3, 2.0, np.sqrt(5))
    assert describe(np.full(3, np.nan)).beyond == 3


def test_sample_is_spread_and_the_same_everywhere():
    assert len(sample_places(SAMPLE)) == SAMPLE
    places = sample_places(1_000_003)
    assert len(np.unique(places)) == SAMPLE
    assert places[0] == 0 and places[-1] == 1_000_002
    # Nothing but the size decides: two machines must choose alike.
    again = np.random.default_rng((20261121, 1_000_003)).choice(
        1_000_001, SAMPLE - 2, replace=False, shuffle=False
    )
    np.testing.assert_array_equal(places[1:-1], np.sort(again) + 1)


def test_differences():
    a = np.array([3.0, 4.0, 0.0], np.float32)
    got = error_metrics(a, a + np.array([0, 0.5, 0], np.float32))
    rms = np.sqrt(25 / 3)
    assert got.largest == 0.5
    np.testing.assert_allclose(got.relative, np.sqrt(0.25 / 3) / rms, rtol=1e-7)
    np.testing.assert_allclose(got.peak, 0.5 / (4 + rms), rtol=1e-7)
    assert error_metrics(a, a).worst == 0
    assert error_metrics(a, a[:2]).worst == np.inf
    assert error_metrics(a, np.array([3.0, np.nan, 0.0])).unlike == 1


def test_masked_positions_do_not_drown_the_others():
    masks = (np.finfo(np.float32).min, float(ml_dtypes.finfo(ml_dtypes.bfloat16).min))
    a, b = (np.array([1.0, 2.0, mask], np.float64) for mask in masks)
    assert error_metrics(a, b).worst == 0
    b[0] = 1.1
    assert error_metrics(a, b).relative == pytest.approx(0.1 / np.sqrt(5))


def test_integers_are_equal_or_wrong():
    a = np.arange(100)
    assert error_metrics(a, a).worst == 0
    assert error_metrics(a, np.where(a == 7, 8, a)).worst == 1.0
    assert error_metrics(a > 3, a > 4).unlike == 1


def test_figures_never_exceed_the_difference_itself():
    rng = np.random.default_rng(5)
    for size in (100, 5000):
        a = rng.normal(size=size)
        b = a + rng.normal(0, 1e-3, size) + 1e-4
        whole, known = error_metrics(a, b), sampled_error(describe(a), describe(b))
        assert known.peak <= whole.peak * (1 + 1e-12)
        assert known.relative >= abs(a.mean() - b.mean()) / np.sqrt(np.square(a).mean())
    # Beyond the sample's reach, norms still tell.
    b = a.copy()
    b[np.setdiff1d(np.arange(size), sample_places(size))[:50]] *= 3
    assert sampled_error(describe(a), describe(b)).worst > 1e-2
