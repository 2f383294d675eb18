"""Image kernels: jitted, differentiable, and exact in the convention that they name."""

from jaxsr.ops._resize.conventions.matlab import matlab_size
from jaxsr.ops.blur import gaussian_blur
from jaxsr.ops.colour import rgb_to_y, rgb_to_ycbcr, ycbcr_to_rgb
from jaxsr.ops.frames import (
    denormalise,
    frame_size,
    normalise,
    postprocess,
    preprocess,
    resize_frames,
)
from jaxsr.ops.mask_crop import feather, mask_box, mask_crop, mask_paste
from jaxsr.ops.memory import keep_freed_memory
from jaxsr.ops.quality import psnr, ssim
from jaxsr.ops.resize import resize

__all__ = [
    "denormalise",
    "feather",
    "frame_size",
    "gaussian_blur",
    "keep_freed_memory",
    "mask_box",
    "mask_crop",
    "mask_paste",
    "matlab_size",
    "normalise",
    "postprocess",
    "preprocess",
    "psnr",
    "resize",
    "resize_frames",
    "rgb_to_y",
    "rgb_to_ycbcr",
    "ssim",
    "ycbcr_to_rgb",
]
