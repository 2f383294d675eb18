"""Rows of warps, cuts and colours, against what people use.

OpenCV's `warpAffine` reads positions in steps of 1/32 pixel: about the same mathematics.
"""

from functools import partial
from typing import Any

import numpy as np

from benchmarks.ops.race import Entry, Row, importable, jit_entry

NEAR = 0.05
"""Largest difference of positions in steps of 1/32 pixel, between neighbours that differ by 1."""


def rotate_row(n: int, side: int) -> Row:
    """An angle for each picture, float32, black beyond the edge."""

    def make() -> list[Entry]:
        import cv2
        import jax.numpy as jnp
        import torch
        import torch.nn.functional as F

        from jaxsr import ops

        rng = np.random.default_rng(0)
        images = rng.random((n, side, side, 3), dtype=np.float32)
        angles = rng.uniform(-45, 45, n).astype(np.float32)
        middle = ((side - 1) / 2, (side - 1) / 2)
        matrices = [cv2.getRotationMatrix2D(middle, float(angle), 1.0) for angle in angles]
        planes = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        turns = torch.deg2rad(torch.from_numpy(angles))
        zero = torch.zeros_like(turns)
        cos, sin = turns.cos(), turns.sin()
        theta = torch.stack([cos, -sin, zero, sin, cos, zero], -1).reshape(n, 2, 3)

        def by_torch() -> Any:
            grid = F.affine_grid(theta, [n, 3, side, side], align_corners=False)
            return F.grid_sample(planes, grid, align_corners=False)

        entries = [
            jit_entry(
                "jaxsr", ops.rotate, jnp.asarray(images), jnp.asarray(angles), values=np.asarray
            ),
            Entry(
                "OpenCV",
                lambda: [
                    cv2.warpAffine(x, m, (side, side))
                    for x, m in zip(images, matrices, strict=True)
                ],
                np.stack,
            ),
            Entry("torch", by_torch, lambda x: np.asarray(x).transpose(0, 2, 3, 1)),
        ]
        kornia = importable("kornia")
        if kornia is not None:
            turn = partial(kornia.geometry.transform.rotate, planes, torch.from_numpy(angles))
            entries.append(Entry("kornia", turn, lambda x: np.asarray(x).transpose(0, 2, 3, 1)))
        return entries

    return Row(name=f"rotate {n}x{side}x{side}x3 float32", entries=make, tolerance=NEAR)


def contrast_row(n: int, side: int) -> Row:
    """A factor for each picture, uint8."""

    def make() -> list[Entry]:
        import jax.numpy as jnp
        from PIL import Image, ImageEnhance

        from jaxsr import ops

        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (n, side, side, 3), np.uint8)
        factors = rng.uniform(0.5, 1.5, n).astype(np.float32)
        pictures = [Image.fromarray(image) for image in images]
        arrays = jnp.asarray(images), jnp.asarray(factors)
        return [
            jit_entry("jaxsr", ops.adjust_contrast, *arrays, values=np.asarray),
            Entry(
                "Pillow",
                lambda: [
                    ImageEnhance.Contrast(x).enhance(float(f))
                    for x, f in zip(pictures, factors, strict=True)
                ],
                lambda out: np.stack([np.asarray(x) for x in out]),
            ),
        ]

    return Row(name=f"contrast {n}x{side}x{side}x3 uint8", entries=make, tolerance=0)


ROWS = [rotate_row(64, 224), rotate_row(8, 512), contrast_row(64, 224)]
