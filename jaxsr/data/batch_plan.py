"""Plans which images a network computes together, and on which canvas: few programs, full batches.

Every shape of a batch is one more program to compile, which takes as long as dozens of images on
a CPU and thousands on an accelerator. Where the network takes images of several sizes on one
canvas, these sizes are rounded up to a short ladder, and canvases that few images need give way
to larger ones as long as the pixels spent cost less than the program saved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Size = tuple[int, int]
"""Height and width in pixels."""

_RUNG_PX = 64
_MOST_PX = 1 << 23
"""Pixels of a batch beyond which it has fewer rows: a 16-wide network keeps 64 bytes of each."""


@dataclass(frozen=True)
class Together:
    """One batch."""

    canvas: Size
    numbers: tuple[int, ...]
    """The images in it, by their place in the list."""
    rows: int
    """Rows of the batch; those beyond its images are filled up."""
    mixed: bool
    """Whether some images that share this shape of batch are smaller than the canvas."""


def plan(
    sizes: Sequence[Size],
    *,
    batch: int,
    multiple: int = 1,
    shared: bool = False,
    program_px: int = 1 << 21,
) -> list[Together]:
    """Batches that hold every image once.

    Args:
      sizes: of the images as the network takes them.
      batch: the most rows of a batch, a multiple of `multiple`.
      multiple: devices that rows are split over.
      shared: whether images of several sizes can lie on one canvas.
      program_px: pixels that can be computed in the time that a program takes to compile.
    """
    canvases = _canvases(sizes, program_px) if shared else list(sizes)
    groups: dict[Size, list[int]] = {}
    for number, canvas in enumerate(canvases):
        groups.setdefault(canvas, []).append(number)
    batches = []
    for common, numbers in groups.items():
        group_sizes = {sizes[number] for number in numbers}
        canvas = common if len(group_sizes) > 1 else sizes[numbers[0]]
        fit = max(_MOST_PX // (canvas[0] * canvas[1]), 1)
        most = min(batch, _up(fit, multiple))
        for start in range(0, len(numbers), most):
            part = tuple(numbers[start : start + most])
            # In powers of two, so that an image alone is not computed `batch` times over, and no
            # two lists of images need many different programs.
            rows = min(_up(1 << (len(part) - 1).bit_length(), multiple), most)
            batches.append(Together(canvas, part, most if start else rows, group_sizes != {canvas}))
    return batches


def rung(side: int) -> int:
    """The ladder's next side: multiples of 64 px, from 256 on four to each doubling."""
    step = max(_RUNG_PX, (1 << (side - 1).bit_length()) // 8)
    return _up(side, step)


def _canvases(sizes: Sequence[Size], program_px: int) -> list[Size]:
    cells = [(rung(height), rung(width)) for height, width in sizes]
    distinct = sorted(set(cells))
    place = {cell: index for index, cell in enumerate(distinct)}
    side = np.array(distinct, np.int64).reshape(-1, 2)
    count = np.bincount([place[cell] for cell in cells], minlength=len(distinct))
    into = np.arange(len(distinct))  # the canvas that each cell's images lie on by now
    while len(side) > 1:
        both = np.maximum(side[:, None], side[None])
        area = side.prod(axis=1)
        each = (both.prod(axis=2) - area[:, None]) * count[:, None]
        spent = each + each.T
        np.fill_diagonal(spent, np.iinfo(np.int64).max)
        one, other = (int(v) for v in np.unravel_index(spent.argmin(), spent.shape))
        if spent[one, other] > program_px:
            break
        side[one], count[one] = both[one, other], count[one] + count[other]
        into[into == other] = one
        side, count = np.delete(side, other, axis=0), np.delete(count, other)
        into -= into > other
    return [(int(h), int(w)) for h, w in side[into[[place[cell] for cell in cells]]]]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
