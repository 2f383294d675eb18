"""Coverage of the oracles of image functions: kernels, and functions that other tests cover."""

KERNELS = ("native", "xla")
ELSEWHERE = {
    "as_grain": "test_records", "augment": "test_augment", "bayer_mosaic": "test_sixty_cases",
    "center_crop": "test_geometry", "denormalise": "test_sixty_cases", "distort": "test_lens",
    "feather": "test_mask_crop", "frame_size": "test_frames", "gaussian_noise": "test_noise",
    "keep_freed_memory": "test_memory", "lab_to_rgb": "test_cie", "linear_to_srgb": "test_cie",
    "luv_to_rgb": "test_cie", "mask_box": "test_mask_crop", "mask_crop": "test_mask_crop",
    "mask_paste": "test_mask_crop", "matlab_size": "resize/test_matlab", "ms_ssim": "test_ms_ssim",
    "niqe": "test_niqe", "nms": "test_suppression", "poisson_noise": "test_noise",
    "postprocess": "test_frames", "preprocess": "test_frames", "psnr_b": "test_psnr_b",
    "resize_frames": "test_frames", "roi_align": "test_boxes", "salt_and_pepper": "test_noise",
    "sensor_noise": "test_noise", "srgb_to_linear": "test_cie", "transform_record": "test_records",
    "xyz_to_rgb": "test_cie",
}  # fmt: skip
"""Functions of other things than pictures alone, and the files in `tests/ops` that hold them."""
