"""Non-maximum suppression against OpenCV and kornia."""

from functools import partial

import cv2
import jax
import numpy as np
import pytest
import torch
from kornia.geometry.bbox import nms as kornia_nms

from jaxsr import ops

CASES, BOXES = 60, 37


def drawn():
    """Boxes that overlap often, and different scores."""
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 50, (CASES, BOXES, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(3, 30, corner.shape)], -1)
    scores = rng.permuted(np.tile(np.linspace(0.05, 0.95, BOXES), (CASES, 1)), axis=1)
    return boxes.astype(np.float32), scores.astype(np.float32)


def test_is_kornias_and_opencvs():
    boxes, scores = drawn()
    limits = np.random.default_rng(1).uniform(0.1, 0.8, CASES).astype(np.float32)
    indices, total = (np.asarray(x) for x in jax.jit(ops.nms)(boxes, scores, limits))
    for case in range(CASES):
        limit = limits[case].item()
        got = indices[case, : total[case]].tolist()
        if case < 8:  # a loop of torch operations
            tensors = torch.from_numpy(boxes[case]), torch.from_numpy(scores[case])
            assert got == kornia_nms(*tensors, limit).tolist()
        assert (indices[case, total[case] :] == -1).all()
        rects = np.concatenate([boxes[case, :, :2], boxes[case, :, 2:] - boxes[case, :, :2]], 1)
        opencv = cv2.dnn.NMSBoxes(rects.tolist(), scores[case].tolist(), 0.0, limit)
        assert got == list(opencv)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float16, np.float32])
def test_areas_may_be_larger_than_the_dtype_holds(dtype):
    boxes = np.array([[0, 0, 200, 200], [10, 10, 210, 210], [0, 0, 100, 250]], np.float32)
    scores = np.array([0.9, 0.8, 0.7], np.float32)
    want = kornia_nms(torch.from_numpy(boxes), torch.from_numpy(scores), 0.5).tolist()
    indices, total = ops.nms(boxes.astype(dtype), scores, 0.5)
    assert np.asarray(indices)[: int(total)].tolist() == want == [0, 2]


def test_thresholds_and_classes_are_opencvs():
    boxes, scores = drawn()
    classes = np.random.default_rng(2).integers(0, 3, scores.shape).astype(np.int32)
    suppressed = ops.nms(boxes, scores, 0.4, score_threshold=0.3, classes=classes)
    indices, total = (np.asarray(x) for x in suppressed)
    for case in range(CASES):
        rects = np.concatenate([boxes[case, :, :2], boxes[case, :, 2:] - boxes[case, :, :2]], 1)
        want = cv2.dnn.NMSBoxesBatched(
            rects.tolist(), scores[case].tolist(), classes[case].tolist(), 0.3, 0.4
        )
        got = indices[case, : total[case]]
        assert sorted(got.tolist()) == sorted(want)
        assert (np.diff(scores[case][got]) < 0).all()


def test_few_results_are_the_first_ones():
    boxes, scores = drawn()
    every = ops.nms(boxes, scores, 0.5).indices
    for most in (5, BOXES + 3):
        few = ops.nms(boxes, scores, 0.5, most=most)
        assert few.indices.shape == (CASES, most)
        np.testing.assert_array_equal(few.indices[:, :BOXES], every[:, :most])
    single = ops.nms(boxes[3], scores[3], 0.5)
    np.testing.assert_array_equal(single.indices, every[3])
    mapped = jax.vmap(partial(ops.nms, iou_threshold=0.5))(boxes, scores)
    np.testing.assert_array_equal(mapped.indices, every)


def test_ties_nan_and_nothing():
    boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 4], [9, 9, 9, 9], [5, 5, 9, 9]], np.float32)
    suppressed = ops.nms(boxes, np.array([1, 1, 1, np.nan], np.float32), 0.5)
    assert suppressed.indices.tolist() == [0, 2, -1, -1]
    assert ops.nms(boxes, np.full(4, -np.inf, np.float32), 0.5).indices.tolist() == [0, 2, 3, -1]
    assert ops.nms(boxes[:0], np.zeros(0, np.float32), 0.5, most=2).indices.tolist() == [-1, -1]
    assert ops.nms(boxes[None, :][:0], np.zeros((0, 4), np.float32), 0.5).indices.shape == (0, 4)


BOX, SCORE = np.zeros((3, 4), np.float32), np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(ops.nms, BOX[:, :3], SCORE, 0.5), ValueError, "boxes must be"),
        (partial(ops.nms, BOX, SCORE[:2], 0.5), ValueError, "boxes must be"),
        (partial(ops.nms, BOX, SCORE, "a"), TypeError, "iou_threshold must hold numbers"),
        (partial(ops.nms, BOX, SCORE, 0.5, most=0), ValueError, "most must be at least 1"),
        (partial(ops.nms, BOX, SCORE, 0.5, most=True), TypeError, "most must be an integer"),
        (partial(ops.nms, BOX, SCORE, 0.5, classes=SCORE), ValueError, "classes must be integers"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
