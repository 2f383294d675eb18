"""A detector over images of many sizes, forms and scales, with networks whose answers are known."""

import csv
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from jaxsr.data.input_form import InputForm
from jaxsr.data.scenes import open_scenes
from jaxsr.detection.detector import Detector, load_detector
from jaxsr.detection.evaluation import write_report
from jaxsr.errors import InputError
from jaxsr.metrics.evaluation import evaluate
from jaxsr.runtime.open_runner import open_runner
from jaxsr.runtime.options import ComputeOptions
from tests.detection.detectors import TORCH, spotted

PLAIN = InputForm(mean=(0.0,) * 3, deviation=(1.0,) * 3, base=64)


def bright(images):
    """Logits that are positive where a picture is nearly white."""
    return 20 * (images[:, :1] - 0.9)


class Function:
    """The runner of a function of arrays."""

    platform, devices, compiles = "cpu", 1, True

    def __init__(self, function):
        self.network, self.programs = SimpleNamespace(forward=function), set()

    def submit(self, batch, **named):
        return lambda: self.network.forward(batch, **named)

    def run(self, method, batch, *, seed):
        raise NotImplementedError


class Half(torch.nn.Module):
    def forward(self, x):
        return 20 * (x[:, :1] - 0.9)


@pytest.mark.parametrize("engine", ["function", "jax", "torch"])
def test_native_sizes_come_back_in_order(engine):
    form = InputForm(mean=(0.0,) * 3, deviation=(1.0,) * 3, evaluate="native")
    images = [spotted(30, 47, (2, 3, 2, 2)), spotted(64, 33), spotted(30, 47, (29, 46, 1, 1))]
    images *= 2
    if engine == "function":
        detector = Detector(Function(bright), form, batch=3)
    else:
        detector = Detector(open_runner(Half(), ComputeOptions(engine=engine)), form, batch=3)
    for image, logits in zip(images, detector.logits(images), strict=True):
        assert logits.shape == image.shape[:2]
        np.testing.assert_array_equal(logits > 0, image[..., 0] > 200)


def test_base_is_pillows_resize_and_probabilities_are_of_native_size():
    image = np.random.default_rng(0).integers(0, 256, (90, 50, 3), np.uint8)
    detector = Detector(Function(lambda x: x[:, :1]), PLAIN)
    (logits,) = detector.logits([image])
    want = np.asarray(Image.fromarray(image).resize((64, 64), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(logits, want[..., 0] / 255.0, atol=1e-6)
    (probability,) = detector.probabilities([image])
    assert probability.shape == (90, 50)


def test_normalisation_follows_the_form():
    seen = []
    form = InputForm(mean=(0.5, 0.25, 0.0), deviation=(0.5, 0.5, 2.0), base=16)
    detector = Detector(Function(lambda x: seen.append(x) or x[:, :1]), form, batch=1)
    list(detector.logits([np.full((16, 16, 3), 255, np.uint8)]))
    np.testing.assert_allclose(seen[0][0, :, 0, 0], [1.0, 1.5, 0.5])


def test_evaluation_of_a_perfect_detector_and_its_files(tmp_path):
    data = open_scenes(6, side=64, seed=2)
    masks = [data.read(k)[1] for k in range(6)]
    answers = iter([masks[:4], [*masks[4:], masks[4], masks[4]]])  # batches are filled up
    detector = Detector(
        Function(lambda x: np.where(np.stack(next(answers)), 9.0, -9.0)[:, None]),
        PLAIN,
        batch=4,
    )
    result = evaluate(detector, data)
    figures = result.figures
    assert (figures.iou, figures.pd, figures.fa, figures.f1) == (1, 1, 0, 1)
    assert result.images == 6 and figures.images_without_target == sum(not m.any() for m in masks)
    write_report(result, tmp_path)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["list_sha256"] == data.list_hash and written["split"] == "train"
    assert written["sized"] == "64×64 px" and written["figures"]["threshold"] == 0.5
    assert written["figures"]["fa_1e6"] == 0 and len(written["rows"]) == 6
    with (tmp_path / "images.csv").open() as file:
        assert {row["name"] for row in csv.DictReader(file)} == set(data.names)
    assert Image.open(tmp_path / "roc.png").size[0] > 400
    assert "IoU 100.00" in str(result) and "list " in str(result)


def test_the_weights_file_says_what_its_network_wants(weights):
    detector = load_detector(weights, options=TORCH)
    assert detector.form == InputForm(
        mean=(0.4,) * 3, deviation=(0.2,) * 3, base=32, gray=True, evaluate="base"
    )
    assert load_detector(weights, options=TORCH, evaluate="native").form.evaluate == "native"


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ([1, 2], "have the input [1, 2], which is not a mapping"),
        (None, "have the input None, which is not a mapping"),
        ({"evil": 1}, "input.evil"),
        ({"mean": "123"}, "input.mean"),
        ({"mean": 5}, "input.mean"),
        ({"mean": [[1], [2], [3]]}, "input.mean"),
        ({"deviation": ["1", "2", "3"]}, "input.deviation"),
        ({"gray": "false"}, "input.gray"),
        ({"base": 960000}, "base must be at most 16,384"),
        ({"base": 16384}, "input.base is 16384 px, more than 4096"),
        ({"multiple": 10**9}, "multiple must be at most 1,024"),
    ],
)
def test_a_form_that_no_run_writes_is_one_line(stated, message):
    with pytest.raises(InputError) as caught:
        InputForm.from_description({"input": stated})
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_engines_agree(weights):
    images = [spotted(40, 56, (9, 9, 3, 3))]
    (ours,) = load_detector(weights).logits(images)
    (theirs,) = load_detector(weights, options=TORCH).logits(images)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_native_sizes_on_few_canvases_are_as_alone(weights):
    """Pictures of eleven sizes, in JAX on canvases that they share, in torch each alone."""
    random = np.random.default_rng(0)
    sizes = [tuple(int(n) for n in random.integers(20, 120, 2)) for _ in range(11)]
    images = [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    ours = load_detector(weights, evaluate="native", batch=4)
    plans = ours.plan(image.shape[:2] for image in images)
    assert len({(each.canvas, each.rows) for each in plans}) <= 2
    assert any(each.mixed for each in plans)
    alone = load_detector(weights, options=TORCH, evaluate="native", batch=1)
    for got, want in zip(ours.logits(images), alone.logits(images), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("form", ["native", "base"])
def test_scales_are_the_mean_probability_of_resized_images(weights, form):
    """Pillow resizes the images, torch the logits; in JAX on canvases that images share."""
    random = np.random.default_rng(1)
    sizes = [(40, 56), (33, 90), (64, 64), (41, 50)]
    images = [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    scales = (0.75, 1.0, 1.5)
    alone = load_detector(weights, options=TORCH, evaluate=form, batch=1)
    bases = {0.75: 32, 1.0: 32, 1.5: 48}  # multiples of 16
    wants = []
    for image in images:
        likely = []
        for scale in scales:
            height, width = image.shape[:2]
            size = (round(width * scale), round(height * scale))
            if form == "base":
                size, detector = None, load_detector(weights, options=TORCH, base=bases[scale])
            else:
                detector = alone
            smaller = image if size is None else Image.fromarray(image).resize(size, 2)
            (logits,) = detector.logits([np.asarray(smaller)])
            side = image.shape[:2] if form == "native" else (32, 32)
            resized = torch.nn.functional.interpolate(
                torch.from_numpy(np.array(logits))[None, None], side, mode="bilinear",
                antialias=True,
            )  # fmt: skip
            likely.append(resized.sigmoid()[0, 0].numpy())
        wants.append(np.mean(likely, axis=0))
    for options in (TORCH, ComputeOptions()):
        ours = load_detector(weights, options=options, evaluate=form, batch=4, scales=scales)
        for logits, want in zip(ours.logits(images), wants, strict=True):
            np.testing.assert_allclose(1 / (1 + np.exp(-logits)), want, atol=2e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.0,)}, "3 channels"),
        ({"deviation": (0.0,) * 3}, "deviation"),
        ({"base": 40}, "base"),
        ({"evaluate": "half"}, "evaluate"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_forms_that_cannot_be_are_refused(options: Any, message):
    with pytest.raises(ValueError, match=message):
        InputForm(**options)
