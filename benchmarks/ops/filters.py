"""Rows of blur, mask crop and the video pipeline, against what people use.

Every library gets its own layout: OpenCV and dm_pix channels last, torch and kornia channels first.
"""

from functools import partial
from typing import Any

import numpy as np

from benchmarks.ops.race import Entry, Row, finished, importable, jit_entry, torch_device


def blur_row(n: int, h: int, w: int, size: int, sigma: float, dtype: str = "float32") -> Row:
    """RGB images of one size; the reflecting border of every library but dm_pix."""

    def make() -> list[Entry]:
        import cv2
        import jax
        import jax.numpy as jnp
        import torch
        import torch.nn.functional as F
        from scipy import ndimage

        from jaxsr.ops.blur import gaussian_blur

        rng = np.random.default_rng(0)
        last = (rng.random((n, h, w, 3)) * (255 if dtype == "uint8" else 1)).astype(dtype)
        first = np.ascontiguousarray(last.transpose(0, 3, 1, 2))
        on_last, on_first = jnp.asarray(last), jnp.asarray(first)
        device = torch_device()
        tensor = torch.from_numpy(first).to(device)
        blur = partial(gaussian_blur, sigma=sigma, kernel_size=size, convention="opencv")
        taps = cv2.getGaussianKernel(size, sigma).astype(np.float32)[:, 0]
        kernel = torch.from_numpy(taps).to(device)
        edge = (size // 2,) * 4
        rule = None if dtype == "float32" else False

        def convolved(*kernels: Any) -> Any:
            x = F.pad(tensor.float(), edge, mode="reflect")
            for each in kernels:
                x = F.conv2d(x, each.expand(3, 1, *each.shape), groups=3)
            return x if dtype == "float32" else x.round().to(torch.uint8)

        def depthwise() -> Any:
            return convolved(kernel[:, None], kernel[None])

        def square() -> Any:  # what torchvision does
            return convolved(torch.outer(kernel, kernel))

        def to_last(x: Any) -> np.ndarray:
            x = x.cpu() if isinstance(x, torch.Tensor) else x
            return np.asarray(x).transpose(0, 2, 3, 1)

        contenders = [
            jit_entry("jaxsr", blur, on_last, values=np.asarray),
            jit_entry(
                "jaxsr, channels first", partial(blur, axes=(-2, -1)), on_first, values=to_last
            ),
            Entry("torch, two depthwise convolutions", finished(depthwise), to_last, rule),
            Entry("torchvision's recipe", finished(square), to_last, rule),
        ]
        if device == "cuda":
            compiled = torch.compile(depthwise, mode="max-autotune-no-cudagraphs")
            return [*contenders, Entry("torch.compile", finished(compiled), to_last, rule)]
        contenders.append(
            Entry(
                "OpenCV",
                lambda: [cv2.GaussianBlur(x, (size, size), sigma) for x in last],
                np.stack,
            )
        )
        if dtype == "uint8":
            return contenders
        kornia, dm_pix = importable("kornia"), importable("dm_pix")
        if kornia:
            contenders.append(
                Entry(
                    "kornia",
                    lambda: kornia.filters.gaussian_blur2d(tensor, (size, size), (sigma, sigma)),
                    to_last,
                )
            )
        if dm_pix:
            pix = jax.jit(lambda x: dm_pix.gaussian_blur(x, sigma, size))
            contenders.append(
                Entry("dm_pix", lambda: jax.block_until_ready(pix(on_last)), np.asarray, False)
            )
        radius = (0, size // 2, size // 2, 0)
        scipy_blur = partial(
            ndimage.gaussian_filter, last, (0, sigma, sigma, 0), mode="mirror", radius=radius
        )
        contenders.append(Entry("SciPy, one thread", scipy_blur, np.asarray))
        return contenders

    moved = 2 * n * h * w * 3 * np.dtype(dtype).itemsize
    tolerance = 1 if dtype == "uint8" else 1e-5
    return Row(
        name=f"blur {n}x{h}x{w}x3 {dtype} k={size}",
        entries=make,
        tolerance=tolerance,
        moved_bytes=moved,
    )


def _clip() -> tuple[np.ndarray, np.ndarray]:
    """8 frames of 720x1280, 0…255, and masks with one rectangle."""
    frames = (np.random.default_rng(0).random((8, 720, 1280, 3)) * 255).astype(np.float32)
    masks = np.zeros((8, 720, 1280, 1), np.float32)
    masks[:, 200:420, 500:800] = 1
    return frames, masks


def _box_by_numpy(masks: np.ndarray) -> tuple[int, int, int, int]:
    """The union's bounding box only, all that a host reads the masks for; then jaxsr's box."""
    hit = np.any(masks[..., 0] > 0.5, axis=0)
    rows, columns = np.flatnonzero(hit.any(1)), np.flatnonzero(hit.any(0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (200, 419, 500, 799)
    return 350, 54, 950, 566


def _cut_by_opencv(frames: np.ndarray, masks: np.ndarray) -> tuple[list[Any], list[Any]]:
    """Frames and thresholded masks, cut by `_box_by_numpy` and resized to 288x512."""
    import cv2

    x1, y1, x2, y2 = _box_by_numpy(masks)
    cut = [cv2.resize(f[y1:y2, x1:x2], (512, 288)) for f in frames]
    return cut, [cv2.resize(m[y1:y2, x1:x2], (512, 288)) > 0.5 for m in masks]


def mask_crop_row() -> Row:
    """Bounding box, cut, resample to 288x512, masks thresholded again."""

    def make() -> list[Entry]:
        import jax
        import jax.numpy as jnp
        import torch
        import torch.nn.functional as F

        from jaxsr.ops.mask_crop import mask_crop

        frames, masks = _clip()
        on_device = jnp.asarray(frames), jnp.asarray(masks)
        crop = partial(mask_crop, size=(288, 512))
        tensors = [torch.from_numpy(x.transpose(0, 3, 1, 2).copy()) for x in (frames, masks)]

        def by_torch() -> Any:
            hit = (tensors[1] > 0.5).amax((0, 1))
            rows, columns = hit.any(1).nonzero(), hit.any(0).nonzero()
            assert (rows[0], rows[-1], columns[0], columns[-1]) == (200, 419, 500, 799)
            x1, y1, x2, y2 = 350, 54, 950, 566
            cut = [
                F.interpolate(x[..., y1:y2, x1:x2], (288, 512), mode="bilinear") for x in tensors
            ]
            return cut[0], cut[1] > 0.5

        def by_jax_image() -> Any:
            return jax.block_until_ready(jax_image(*on_device))

        @jax.jit
        def jax_image(frames: Any, masks: Any) -> Any:
            from jaxsr.ops.mask_crop import mask_box

            x1, y1, x2, y2 = mask_box(masks).astype(jnp.float32)
            scale = jnp.stack([288 / (y2 - y1), 512 / (x2 - x1)])
            resample = partial(
                jax.image.scale_and_translate,
                spatial_dims=(1, 2),
                scale=scale,
                translation=-jnp.stack([y1, x1]) * scale,
                method="linear",
                antialias=False,
            )
            return resample(frames, (8, 288, 512, 3)), resample(masks, (8, 288, 512, 1)) > 0.5

        return [
            jit_entry("jaxsr", crop, *on_device, values=lambda out: np.asarray(out.frames)),
            Entry(
                "NumPy and OpenCV",
                partial(_cut_by_opencv, frames, masks),
                lambda out: np.stack(out[0]),
            ),
            Entry("torch", by_torch, lambda out: out[0].numpy().transpose(0, 2, 3, 1)),
            Entry(
                "jax.image.scale_and_translate", by_jax_image, lambda out: np.asarray(out[0]), False
            ),
        ]

    return Row(name="mask crop 8x720x1280x3 float32 to 288x512", entries=make, tolerance=0.1)


def pipeline_row() -> Row:
    """Mask crop, resize, threshold, blur of the mask, normalisation."""

    def make() -> list[Entry]:
        import cv2
        import jax.numpy as jnp

        from jaxsr.ops.frames import preprocess

        frames, masks = _clip()
        on_device = jnp.asarray(frames), jnp.asarray(masks)
        ready = partial(preprocess, size=(288, 512))

        def by_opencv() -> Any:
            cut, solid = _cut_by_opencv(frames, masks)
            soft = [cv2.GaussianBlur(m.astype(np.float32) * 255, (7, 7), 1.5) / 255 for m in solid]
            return np.stack(cut) / np.float32(127.5) - 1, solid, soft

        return [
            jit_entry("jaxsr", ready, *on_device, values=lambda out: np.asarray(out.frames)),
            Entry("NumPy and OpenCV", by_opencv, lambda out: out[0]),
        ]

    return Row(name="pipeline 8x720x1280x3 float32 to 288x512", entries=make, tolerance=1e-3)


ROWS = (
    blur_row(1, 1080, 1920, 21, 3.5),
    blur_row(1, 1080, 1920, 7, 1.5),
    blur_row(8, 512, 512, 21, 3.5),
    blur_row(16, 96, 96, 7, 1.5),
    blur_row(1, 1080, 1920, 21, 3.5, "uint8"),
    blur_row(1, 1080, 1920, 7, 1.5, "uint8"),
    mask_crop_row(),
    pipeline_row(),
)
GPU_ROWS = tuple(
    blur_row(count, 1080, 1920, size, sigma, dtype)
    for dtype, count in (("float32", 8), ("uint8", 32))
    for size, sigma in ((21, 3.5), (7, 1.5))
)
"""Rows of large batches, for GPUs."""
