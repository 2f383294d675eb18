"""Means over images, of which some are exact."""

import math

import numpy as np
import pytest

from jaxsr.metrics.means import mean_figures
from jaxsr.ops.quality import psnr


def test_an_image_without_any_error_makes_no_mean_infinite():
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 1), np.uint8)
    other = np.where(np.arange(3)[:, None, None, None] > 0, images // 2, images)
    values = [float(psnr(a, b)) for a, b in zip(other, images, strict=True)]
    assert math.isinf(values[0])
    rows: list[dict[str, float | None]] = [
        {"psnr": v, "bicubic_psnr": v, "ssim": float(n)} for n, v in enumerate(values)
    ]
    rows[2]["bicubic_psnr"] = None
    means = mean_figures(rows)
    assert means["psnr"] == pytest.approx(np.mean(values[1:]))
    assert means["bicubic_psnr"] == values[1] and means["ssim"] == 1
    assert mean_figures(rows[:1])["psnr"] == math.inf
    assert math.isnan(mean_figures([{"psnr": math.nan}, *rows[1:2]])["psnr"])
