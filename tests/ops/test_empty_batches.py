"""An empty batch gives an empty result of the right shape."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsr import ops
from tests.oracles.images.every import ORACLES

FRAMES, MASKS = (0, 12, 14, 3), (0, 12, 14, 1)


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        *((partial(ops.resize, size=(5, 30), convention=c), (0, 5, 30, 3))
          for c in ("torch", "opencv", "pillow", "matlab")),
        (partial(ops.resize, size=(5, 30), method="lanczos", convention="opencv"), (0, 5, 30, 3)),
        (partial(ops.gaussian_blur, kernel_size=3), FRAMES),
        (partial(ops.gaussian_blur, sigma=3.0, convention="opencv"), FRAMES),
        (partial(ops.gaussian_blur, sigma=60.0, convention="opencv"), FRAMES),
        (ops.rgb_to_y, MASKS),
        (ops.rgb_to_ycbcr, FRAMES),
        (ops.ycbcr_to_rgb, FRAMES),
        (ops.normalise, FRAMES),
        (partial(ops.resize_frames, image_size=10, multiple=2), (0, 10, 10, 3)),
        (lambda x: ops.psnr(x, x), (0,)),
        (lambda x: ops.ssim(x, x), (0,)),
        (lambda x: ops.feather(x[..., :1]), MASKS),
        (lambda x: ops.mask_crop(x, x[..., :1], size=(4, 6)).frames, (0, 4, 6, 3)),
        (lambda x: ops.mask_paste(x, x[:, :4, :4], x[..., :1], (0, 0, 4, 4)), FRAMES),
    ],
)  # fmt: skip
def test_empty_batch(function, shape, dtype):
    for call in (function, jax.jit(function)):
        assert call(np.zeros(FRAMES, dtype)).shape == shape


def test_no_masks_stand_for_the_whole_frame():
    np.testing.assert_array_equal(ops.mask_box(np.zeros(MASKS, np.float32)), [0, 0, 14, 12])


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda o: f"{o.function} {o.rule}")
def test_every_function_takes_an_empty_batch(oracle):
    """With arguments for each of no images."""
    images = np.zeros((4, 34, 19, oracle.channels))
    arguments = oracle.draw(np.random.default_rng(0), images)
    none = [np.asarray(argument)[:0] for argument in arguments]
    batch = np.zeros((0, *images.shape[1:]), jnp.dtype(oracle.dtypes[0]))
    results = oracle.call(batch, *none)
    assert all(0 in result.shape for result in jax.tree.leaves(results))
