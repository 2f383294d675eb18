"""Detection figures against pyirstdmetrics and scikit-learn, and against public code's defects.

`record_pyirstdmetrics.py` recorded the former's figures.
"""

import functools
import json
from typing import Any

import numpy as np
import pytest

from jaxsr.metrics.components import components, match
from jaxsr.metrics.detection import DetectionMetrics, pixel_figures
from tests.metrics.record_pyirstdmetrics import FIGURES, RECORDED, digest


def _logit(probability):
    return np.log(probability) - np.log1p(-probability)


def _blobs(random, side, count, largest=5):
    mask = np.zeros((side, side), bool)
    for _ in range(count):
        row, column = random.integers(0, side, 2)
        height, width = random.integers(1, largest + 1, 2)
        mask[row : row + height, column : column + width] = True
    return mask


def random_case(seed):
    """A mask with a few targets, and a prediction that found, missed, moved and invented some."""
    random = np.random.default_rng(seed)
    side = int(random.integers(16, 72))
    mask = _blobs(random, side, random.integers(0, 6))
    moved = np.roll(mask, random.integers(-3, 4, 2), (0, 1))
    likely = (moved & (random.random((side, side)) < 0.9)) | _blobs(random, side, 3)
    probability = np.where(likely, 0.4, 0.02) + 0.55 * random.random((side, side))
    return probability, mask


def _with(side, *boxes):
    mask = np.zeros((side, side), bool)
    for top, left, height, width in boxes:
        mask[top : top + height, left : left + width] = True
    return mask


MASKS = {
    "no target": _with(16),
    "all target": _with(16, (0, 0, 16, 16)),
    "one pixel": _with(16, (7, 8, 1, 1)),
    "touching by a corner": _with(16, (3, 3, 3, 3), (6, 6, 3, 3)),
    "two apart by a pixel": _with(16, (3, 3, 3, 3), (3, 7, 3, 3)),
    "in the corners": _with(16, (0, 0, 2, 2), (0, 15, 1, 1), (14, 0, 2, 1), (15, 15, 1, 1)),
    "along the border": _with(16, (0, 0, 1, 16), (15, 3, 1, 9)),
    "checkerboard": np.indices((16, 16)).sum(axis=0) % 2 == 0,
    "three of one area": _with(16, (1, 1, 1, 5), (7, 1, 1, 5), (13, 1, 1, 5)),
    "ring round a point": _with(16, (3, 3, 9, 9)) & ~_with(16, (4, 4, 7, 7))
    | _with(16, (7, 7, 1, 1)),
}
ADVERSARIAL = [(a, b) for a in MASKS for b in MASKS]  # 100 pairs of prediction and truth


@functools.cache
def _records():
    return json.loads(RECORDED.read_text())


def _theirs(case, images):
    recorded, *numbers = _records()[case]
    assert recorded == digest(images), "another case than was recorded; record it again"
    figures = dict(zip(FIGURES, numbers, strict=False))
    pd, fa = np.split(np.asarray(numbers[len(FIGURES) :]), 2)
    return figures, pd, fa


def _compare(report, expected):
    figures, pd, fa = expected
    for name, value in figures.items():
        # Quotients of the same whole numbers; F1 by another formula.
        assert getattr(report, name) == pytest.approx(value, abs=1e-12), name
    np.testing.assert_allclose(report.curve.pd, pd, atol=1e-12)
    np.testing.assert_allclose(report.curve.fa, fa, atol=1e-12)


def _ours(probability, mask, **options: Any):
    metrics = DetectionMetrics(**options)
    metrics.update(["case"], _logit(probability)[None], mask[None])
    return metrics.report()


@pytest.mark.sample(30)
@pytest.mark.parametrize("seed", range(200))
def test_random_case_equals_pyirstdmetrics(seed):
    probability, mask = random_case(seed)
    _compare(_ours(probability, mask), _theirs(f"random {seed}", [(probability, mask)]))


@pytest.mark.parametrize(("predicted", "truth"), ADVERSARIAL)
def test_adversarial_case_equals_pyirstdmetrics(predicted, truth):
    probability = np.where(MASKS[predicted], 0.93, 0.04)
    case = _theirs(f"{predicted} / {truth}", [(probability, MASKS[truth])])
    _compare(_ours(probability, MASKS[truth]), case)


def test_a_whole_data_set_equals_pyirstdmetrics():
    cases = [random_case(seed) for seed in range(60)]
    metrics = DetectionMetrics()
    for number, (probability, mask) in enumerate(cases):
        metrics.update([str(number)], _logit(probability)[None], mask[None])
    _compare(metrics.report(), _theirs("a whole data set", cases))


def test_auc_and_roc_equal_scikit_learn():
    from sklearn.metrics import roc_auc_score

    cases = [random_case(seed) for seed in range(12)]
    metrics = DetectionMetrics(curve_points=20)
    for number, (probability, mask) in enumerate(cases):
        metrics.update([str(number)], _logit(probability)[None], mask[None])
    report = metrics.report()
    score = np.concatenate([p.ravel() for p, _ in cases])
    truth = np.concatenate([m.ravel() for _, m in cases])
    # Logits closer than 1 part in 128 count as equal.
    assert report.auc == pytest.approx(roc_auc_score(truth, score), abs=1e-3)
    for point, threshold in enumerate(report.curve.threshold):
        above = score > threshold
        assert report.curve.true_positive_rate[point] == pytest.approx(above[truth].mean())
        assert report.curve.false_positive_rate[point] == pytest.approx(above[~truth].mean())
    # The curve that is drawn encloses the AUC that is printed.
    false_rate, true_rate = report.roc.false_positive_rate, report.roc.true_positive_rate
    assert (false_rate[0], true_rate[0], false_rate[-1], true_rate[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(true_rate, false_rate) == pytest.approx(report.auc, abs=1e-12)
    assert len(false_rate) > 100 and "roc" not in report.as_dict()


@pytest.mark.parametrize("batch", [1, 5])
def test_counts_and_their_figures_are_numpys(batch):
    random = np.random.default_rng(batch)
    logits = random.normal(size=(batch, 33, 47)).astype(np.float32)
    masks = random.random((batch, 33, 47)) < 0.1
    found = logits > 0
    kinds = (found & masks, found & ~masks, ~found & masks)
    got = np.stack([kind.sum((1, 2)) for kind in kinds], axis=1)
    metrics = DetectionMetrics()
    metrics.update([str(k) for k in range(batch)], logits, masks)
    report = metrics.report()
    want = [
        (r.true_positive_pixels, r.false_positive_pixels, r.false_negative_pixels)
        for r in report.per_image
    ]
    np.testing.assert_array_equal(got, want)
    figures = pixel_figures(got)
    assert figures == {name: getattr(report, name) for name in figures}


# One test for each defect of public code in the specification.


def test_pd_does_not_decay_from_one_evaluation_to_the_next():
    """Targets that are never reset make the second evaluation's Pd half of the first's."""
    truth = MASKS["in the corners"]
    predicted = np.where(truth & ~_with(16, (0, 0, 2, 2)), 0.9, 0.1)
    assert [_ours(predicted, truth).pd for _ in range(3)] == [0.75] * 3
    metrics = DetectionMetrics()
    metrics.update(["case"], _logit(predicted)[None], truth[None])
    assert [metrics.report().pd for _ in range(3)] == [0.75] * 3


def test_fa_counts_every_false_region_of_equal_area():
    """Dropping regions by the value of their area leaves Fa = 0 here, for 10 false pixels."""
    truth = _with(16, (1, 1, 1, 5))
    predicted = MASKS["three of one area"]
    matched = match(components(predicted), components(truth))
    assert (matched.found, matched.predictions, matched.false_pixels) == (1, 3, 10)
    report = _ours(np.where(predicted, 0.9, 0.1), truth)
    assert report.fa == pytest.approx(10 / 256)


def test_thresholds_are_probabilities_and_not_levels_of_a_picture():
    """Held against logits as though they were 0…255, no threshold but 0 is ever passed."""
    mask = _with(16, (4, 4, 3, 3))
    logits = np.where(mask, _logit(0.75), _logit(0.35))
    metrics = DetectionMetrics(curve_points=10)
    metrics.update(["case"], logits[None], mask[None])
    curve = metrics.report().curve
    rates = list(zip(curve.true_positive_rate, curve.false_positive_rate, strict=True))
    assert rates == [(1.0, 1.0)] * 4 + [(1.0, 0.0)] * 4 + [(0.0, 0.0)] * 2


def test_one_prediction_never_finds_two_targets():
    truth = _with(16, (7, 5, 1, 1), (7, 9, 1, 1))
    predicted = _with(16, (7, 7, 1, 1))
    matched = match(components(predicted), components(truth))
    assert (matched.targets, matched.found, matched.false_pixels) == (2, 1, 0)


def test_an_image_without_targets_and_predictions_follows_the_chosen_convention():
    nothing = _with(16)
    low = np.full((16, 16), 0.1)
    assert _ours(low, nothing).niou == 0  # as pyirstdmetrics
    assert _ours(low, nothing, empty="one").niou == 1
    metrics = DetectionMetrics(empty="skip")
    right = np.where(MASKS["one pixel"], 0.9, 0.1)
    metrics.update(
        ["empty", "found"], _logit(np.stack([low, right])), np.stack([nothing, right > 0.5])
    )
    report = metrics.report()
    assert (report.niou, report.images_without_target, report.images) == (1.0, 1, 2)
    assert report.auc == 1.0 and _ours(low, nothing).auc is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold": 1.0}, "threshold"),
        ({"threshold": -0.1}, "threshold"),
        ({"distance_px": 0.0}, "distance_px"),
        ({"curve_points": 0}, "curve_points"),
        ({"empty": "nan"}, "empty"),
    ],
)
def test_arguments_out_of_range_are_named(unchecked_types, options: Any, said):
    with pytest.raises(ValueError, match=said):
        DetectionMetrics(**options)


def test_wrong_batches_are_refused(unchecked_types):
    metrics = DetectionMetrics()
    with pytest.raises(ValueError, match="no image was evaluated"):
        metrics.report()
    with pytest.raises(ValueError, match="height, width"):
        metrics.update(["a"], np.zeros((1, 4, 4)), np.zeros((1, 4, 5)))
    with pytest.raises(ValueError, match="prediction for b has NaN"):
        metrics.update(["a", "b"], np.array([[[0.0]], [[np.nan]]]), np.zeros((2, 1, 1)))


def test_zeros_of_both_signs_are_equal_scores():
    from sklearn.metrics import roc_auc_score

    mask = np.arange(16).reshape(1, 4, 4) % 4 == 0
    logits = np.where(mask, 0.0, -0.0).astype(np.float32)
    metrics = DetectionMetrics()
    metrics.update(["case"], logits, mask)
    assert metrics.report().auc == roc_auc_score(mask.ravel(), logits.ravel()) == 0.5
