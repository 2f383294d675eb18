"""examples/imagenet_augment: every contender that is installed makes batches of one kind."""

import jax
import numpy as np
import pytest

from jaxsr import ops
from tests.examples.plain_torch import load_example


@pytest.fixture
def example():
    return load_example("imagenet_augment", "augment")


@pytest.mark.slow
def test_the_program_is_augment_and_normalisation(example):
    images = example.pictures(2)
    got = np.asarray(example.on_device(jax.random.key(3), images))
    assert got.shape == (2, 224, 224, 3) and images.shape == (2, 256, 256, 3)
    levels = np.asarray(ops.augment(jax.random.key(3), images, example.POLICY).images)
    want = (levels / 255 - np.array(example.MEAN)) / np.array(example.DEVIATION)
    # Levels at a tie may be rounded the other way in another program.
    assert np.quantile(np.abs(got - want), 0.999) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["jaxsr", "Grain + albumentations", "Grain + torchvision", "kornia"]
)
def test_contenders_agree_in_mean_and_spread(example, name):
    try:
        results = example.CONTENDERS[name](example.pictures(32))()
    except ImportError as error:
        pytest.skip(str(error))
    batch = np.asarray(results)
    assert batch.size == 32 * 3 * 224 * 224
    assert -1.5 < batch.mean() < 0.5 and 0.7 < batch.std() < 1.6


@pytest.mark.slow  # 10 s of compiling
def test_the_forecast_of_a_small_batch(example):
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install -e '.[aot]'")
    figures = example.forecast("v5e:1x1", 8)
    read, written = 8 * 256 * 256 * 3, 4 * 8 * 224 * 224 * 3
    assert figures["arguments_mb"] >= read / 1e6 and figures["results_mb"] >= written / 1e6
    # At least what is written passes through memory, at 819 GB a second; crops need not read all.
    assert 8e4 < figures["most_pictures_per_s"] < 8 * 819e9 / written
