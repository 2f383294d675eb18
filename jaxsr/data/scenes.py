"""Synthetic infrared scenes with small targets, for runs without a data set.

A scene is a function of a seed and a number, the same on every machine: the random words are
Philox's raw ones, and everything after them is IEEE addition, multiplication, division and square
root in a fixed order (no `exp` or `sin`, whose last bits differ between libraries).

Backgrounds are smooth sky, clouds, ground clutter with bright edges, or sea with a horizon and
glints; over them lie sensor noise and 0 to 3 targets of about 1 to 100 px each, from a point to a
blob, brighter than what is around them. Glints and clutter edges are what a detector must not
mark. These are drawings, not physics: a figure on them says that training works, and no more.
"""

from dataclasses import dataclass

import numpy as np

from jaxsr.data.infrared import Infrared, Pair
from jaxsr.errors import InputError

KINDS = ("sky", "clouds", "clutter", "sea")

_AREAS_PX = (1.0, 1.8, 3.2, 5.6, 10.0, 18.0, 32.0, 56.0, 100.0)
_EMPTY = 0.15
"""Part of the scenes that have no target."""


@dataclass(frozen=True)
class _Draws:
    """Uniform numbers of one scene, handed out in order."""

    stream: np.random.Philox

    def __call__(self, *shape: int) -> np.ndarray:
        words = self.stream.random_raw(int(np.prod(shape, dtype=np.int64)))
        return (words >> np.uint64(11)).astype(np.float64).reshape(shape) / 2.0**53

    def between(self, low: int | float, high: int | float) -> float:
        return low + (high - low) * float(self(1)[0])

    def normals(self, *shape: int) -> np.ndarray:
        """Nearly normal, deviation 1: the scaled sum of four uniforms (Irwin–Hall)."""
        total = self(*shape) + self(*shape) + (self(*shape) + self(*shape))
        return (total - 2.0) * np.sqrt(3.0)


def scene(seed: int, number: int, *, side: int = 256) -> Pair:
    """Draws one scene: the image, uint8 (side, side, 3) with equal channels, and its mask."""
    if not 0 <= seed < 2**63 or number < 0:
        raise InputError(f"seed and number must be 0 or more, got {seed} and {number}")
    if side < 32:
        raise InputError(f"side must be at least 32 px for a scene, got {side}")
    draw = _Draws(np.random.Philox(key=[seed, number]))
    kind = KINDS[int(draw.between(0, len(KINDS)))]
    level = _BACKGROUNDS[kind](draw, side)
    mask = np.zeros((side, side), np.uint8)
    if draw.between(0, 1) > _EMPTY:
        for _ in range(1 + int(draw.between(0, 1) ** 2 * 3)):
            _place_target(draw, level, mask)
    level += draw.between(0.5, 5.0) * draw.normals(side, side)
    image = np.clip(np.floor(level + 0.5), 0, 255).astype(np.uint8)
    return np.repeat(image[..., None], 3, axis=-1), mask


def open_scenes(count: int, *, seed: int = 0, side: int = 256, split: str = "train") -> Infrared:
    """`count` scenes as a split; "train", "validation" and "test" have no scene in common."""
    offsets = {"train": 0, "validation": 1 << 40, "test": 1 << 41}
    if split not in offsets:
        raise InputError(f"split must be one of {', '.join(offsets)}, got {split!r}")
    if count < 1:
        raise InputError(f"count must be at least 1 scene, got {count}")
    made: dict[str, Pair] = {}

    def load(name: str) -> Pair:
        if name not in made:
            made[name] = scene(seed, offsets[split] + int(name.rsplit("_", 1)[-1]), side=side)
        return made[name]

    names = tuple(f"{split}_{number:05}" for number in range(count))
    return Infrared(
        source=f"synthetic scenes (seed {seed}, {side}×{side} px)",
        split=split,
        names=names,
        sizes=np.full((count, 2), side, np.int32),
        target_pixels=np.array([int(load(name)[1].sum()) for name in names], np.int64),
        gray=True,
        load=load,
    )


def _noise(draw: _Draws, side: int, *, cell: float, stretch: float = 1.0) -> np.ndarray:
    """Value noise in 0…1: random corners every `cell` px, smoothly joined."""

    def axis(step: float) -> tuple[np.ndarray, np.ndarray]:
        place = np.arange(side) / step
        low = np.floor(place)
        part = place - low
        return low.astype(np.int64), part * part * (3.0 - 2.0 * part)

    (row, down), (column, right) = axis(cell), axis(cell * stretch)
    corner = draw(int(row[-1]) + 2, int(column[-1]) + 2)
    top, bottom = corner[row], corner[row + 1]
    rows = top + (bottom - top) * down[:, None]
    left, beside = rows[:, column], rows[:, column + 1]
    return left + (beside - left) * right


def _octaves(
    draw: _Draws, side: int, *, cell: float, count: int, stretch: float = 1.0
) -> np.ndarray:
    total, weight, sum_of_weights = np.zeros((side, side)), 1.0, 0.0
    for _ in range(count):
        total += weight * _noise(draw, side, cell=max(cell, 2.0), stretch=stretch)
        sum_of_weights += weight
        cell, weight = cell / 2, weight * 0.55
    return total / sum_of_weights


def _ramp(draw: _Draws, side: int) -> np.ndarray:
    place = np.arange(side) / side - 0.5
    return draw.between(-50, 50) * place[:, None] + draw.between(-20, 20) * place


def _sky(draw: _Draws, side: int) -> np.ndarray:
    haze = _octaves(draw, side, cell=side / 2, count=2)
    return draw.between(40, 130) + _ramp(draw, side) + 20 * haze


def _clouds(draw: _Draws, side: int) -> np.ndarray:
    field = _octaves(draw, side, cell=side / draw.between(2, 6), count=5, stretch=1.5)
    cover = np.clip((field - draw.between(0.4, 0.55)) * 4.0, 0.0, 1.0)
    texture = _octaves(draw, side, cell=side / 10, count=3)
    return _sky(draw, side) + cover * (draw.between(30, 100) * (0.6 + 0.4 * texture))


def _clutter(draw: _Draws, side: int) -> np.ndarray:
    field = _octaves(draw, side, cell=side / draw.between(6, 16), count=5)
    level = draw.between(40, 100) + draw.between(50, 130) * (field - 0.3) + _ramp(draw, side)
    for _ in range(int(draw.between(0, 6))):  # walls and roads: straight bright edges
        top, left = (int(draw.between(0, side - 8)) for _ in range(2))
        height, width = (int(draw.between(3, side / 3)) for _ in range(2))
        level[top : top + height, left : left + width] += draw.between(-40, 50)
    return level


def _sea(draw: _Draws, side: int) -> np.ndarray:
    horizon = int(draw.between(0.1, 0.6) * side)
    level = _sky(draw, side)
    waves = _octaves(draw, side, cell=side / 24, count=4, stretch=4.0)
    water = draw.between(30, 90) + 60 * waves
    glints = draw(side, side) < 0.0008
    water += np.where(glints, draw.between(10, 45), 0.0)
    level[horizon:] = water[horizon:]
    return level


_BACKGROUNDS = {"sky": _sky, "clouds": _clouds, "clutter": _clutter, "sea": _sea}


def _place_target(draw: _Draws, level: np.ndarray, mask: np.ndarray) -> None:
    """Adds one elliptic target of about 1 to 100 px and marks it."""
    side = len(level)
    # Evenly spread over the logarithm, but for straight pieces: small targets are the rule.
    step, part = divmod(draw.between(0, len(_AREAS_PX) - 1), 1.0)
    smaller, larger = _AREAS_PX[int(step)], _AREAS_PX[int(step) + 1]
    area = smaller + part * (larger - smaller)
    aspect = draw.between(0.6, 1.0)
    radius = np.sqrt(area / 3.14159265 / aspect)
    row, column = draw.between(0, side), draw.between(0, side)
    down = np.arange(side) + 0.5 - row
    right = np.arange(side) + 0.5 - column
    # A turn by a rational point of the circle: no sine.
    t = draw.between(-1, 1)
    cosine, sine = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    along = cosine * right + (sine * down)[:, None]
    across = (cosine * down)[:, None] - sine * right
    distance = (along / radius) ** 2 + (across / (radius * aspect)) ** 2
    inside = distance <= 1.0
    if not inside.any():
        inside[min(int(row), side - 1), min(int(column), side - 1)] = True
    # Twice the radius, so that the edge keeps some brightness and fades outside the mask.
    glow = np.clip(1.0 - distance / 4.0, 0.0, 1.0) ** 3
    glow = np.where(inside, np.maximum(glow, 0.5), glow)
    level += draw.between(35, 120) * glow
    mask[inside] = 1
