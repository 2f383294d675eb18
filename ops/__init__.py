"""Image kernels: jitted, differentiable, and exact in the convention that they name."""

from jaxsr.ops._augment.batch import Augmented
from jaxsr.ops._augment.degrading import (
    RandomBlur,
    RandomJPEG,
    RandomMotionBlur,
    RandomNoise,
    Resize,
)
from jaxsr.ops._augment.geometric import (
    ElasticTransform,
    RandomAffine,
    RandomFlip,
    RandomPerspective,
    RandomResizedCrop,
)
from jaxsr.ops._augment.mixing import CutMix, Mixup
from jaxsr.ops._augment.photometric import ColorJitter, RandomErasing
from jaxsr.ops._augment.policies import AugMix, RandAugment, TrivialAugment
from jaxsr.ops._resize.conventions.matlab import matlab_size
from jaxsr.ops.adjust import (
    adjust_brightness,
    adjust_contrast,
    adjust_gamma,
    adjust_hue,
    adjust_saturation,
    adjust_sharpness,
    invert,
    posterize,
    solarize,
    standardise,
)
from jaxsr.ops.augment import augment
from jaxsr.ops.bayer import bayer_mosaic, demosaic
from jaxsr.ops.blur import gaussian_blur
from jaxsr.ops.boxes import crop_and_resize, roi_align
from jaxsr.ops.cie import (
    lab_to_rgb,
    linear_to_srgb,
    luv_to_rgb,
    rgb_to_lab,
    rgb_to_luv,
    rgb_to_xyz,
    srgb_to_linear,
    xyz_to_rgb,
)
from jaxsr.ops.clahe import clahe
from jaxsr.ops.colour import rgb_to_y, rgb_to_ycbcr, ycbcr_to_rgb
from jaxsr.ops.components import Components, connected_components
from jaxsr.ops.deform import elastic, thin_plate_spline
from jaxsr.ops.delta_e import delta_e
from jaxsr.ops.distance import distance_transform
from jaxsr.ops.edges import canny, laplacian, sobel
from jaxsr.ops.filters import box_filter, dilate, erode, median_filter
from jaxsr.ops.frames import (
    denormalise,
    frame_size,
    normalise,
    postprocess,
    preprocess,
    resize_frames,
)
from jaxsr.ops.geometry import center_crop, crop, flip, pad, rot90, transpose
from jaxsr.ops.gray import rgb_to_gray
from jaxsr.ops.histograms import autocontrast, equalize
from jaxsr.ops.homography import perspective_matrix
from jaxsr.ops.hsv import hls_to_rgb, hsv_to_rgb, rgb_to_hls, rgb_to_hsv
from jaxsr.ops.jpeg import jpeg
from jaxsr.ops.lens import distort, undistort
from jaxsr.ops.mask_crop import feather, mask_box, mask_crop, mask_paste
from jaxsr.ops.memory import keep_freed_memory
from jaxsr.ops.morphology import closing, morphological_gradient, opening
from jaxsr.ops.motion import motion_blur
from jaxsr.ops.niqe import niqe
from jaxsr.ops.noise import gaussian_noise, poisson_noise, salt_and_pepper, sensor_noise
from jaxsr.ops.quality import ms_ssim, psnr, psnr_b, ssim
from jaxsr.ops.records import as_grain, transform_record
from jaxsr.ops.resize import resize
from jaxsr.ops.smoothing import bilateral_filter, guided_filter, unsharp_mask
from jaxsr.ops.suppression import Kept, nms
from jaxsr.ops.warps import (
    grid_sample,
    map_coordinates,
    remap,
    rotate,
    warp_affine,
    warp_perspective,
)
from jaxsr.ops.white_balance import white_balance
from jaxsr.ops.yuv import rgb_to_yuv, yuv_to_rgb
from jaxsr.xla_calls.promotion import own_promotion

__all__ = [
    "AugMix",
    "Augmented",
    "ColorJitter",
    "Components",
    "CutMix",
    "ElasticTransform",
    "Kept",
    "Mixup",
    "RandAugment",
    "RandomAffine",
    "RandomBlur",
    "RandomErasing",
    "RandomFlip",
    "RandomJPEG",
    "RandomMotionBlur",
    "RandomNoise",
    "RandomPerspective",
    "RandomResizedCrop",
    "Resize",
    "TrivialAugment",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "as_grain",
    "augment",
    "autocontrast",
    "bayer_mosaic",
    "bilateral_filter",
    "box_filter",
    "canny",
    "center_crop",
    "clahe",
    "closing",
    "connected_components",
    "crop",
    "crop_and_resize",
    "delta_e",
    "demosaic",
    "denormalise",
    "dilate",
    "distance_transform",
    "distort",
    "elastic",
    "equalize",
    "erode",
    "feather",
    "flip",
    "frame_size",
    "gaussian_blur",
    "gaussian_noise",
    "grid_sample",
    "guided_filter",
    "hls_to_rgb",
    "hsv_to_rgb",
    "invert",
    "jpeg",
    "keep_freed_memory",
    "lab_to_rgb",
    "laplacian",
    "linear_to_srgb",
    "luv_to_rgb",
    "map_coordinates",
    "mask_box",
    "mask_crop",
    "mask_paste",
    "matlab_size",
    "median_filter",
    "morphological_gradient",
    "motion_blur",
    "ms_ssim",
    "niqe",
    "nms",
    "normalise",
    "opening",
    "pad",
    "perspective_matrix",
    "poisson_noise",
    "posterize",
    "postprocess",
    "preprocess",
    "psnr",
    "psnr_b",
    "remap",
    "resize",
    "resize_frames",
    "rgb_to_gray",
    "rgb_to_hls",
    "rgb_to_hsv",
    "rgb_to_lab",
    "rgb_to_luv",
    "rgb_to_xyz",
    "rgb_to_y",
    "rgb_to_ycbcr",
    "rgb_to_yuv",
    "roi_align",
    "rot90",
    "rotate",
    "salt_and_pepper",
    "sensor_noise",
    "sobel",
    "solarize",
    "srgb_to_linear",
    "ssim",
    "standardise",
    "thin_plate_spline",
    "transform_record",
    "transpose",
    "undistort",
    "unsharp_mask",
    "warp_affine",
    "warp_perspective",
    "white_balance",
    "xyz_to_rgb",
    "ycbcr_to_rgb",
    "yuv_to_rgb",
]

for _name in __all__:
    if _name.islower():
        globals()[_name] = own_promotion(globals()[_name])
