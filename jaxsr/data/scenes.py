"""Synthetic infrared scenes with small targets, for runs without a data set.

A scene is a function of a seed and a number, the same on every machine: the random words are
Philox's raw ones, and everything after them is IEEE addition, multiplication, division and square
root in a fixed order (no `exp` or `sin`, whose last bits differ between libraries).

A background is drawn in layers: smooth sky, then often clouds or a soft bright band, then a bank of
clouds, trees or hills behind a horizon, ground with fields and poles, or sea with glints. Contrasts
reach from a few levels to saturation. Over it lie 0 to 4 targets of 1 to about 200 px: a point, a
blob or several that touch, bright or dim. A blur of the optics and the sensor's noise (white,
in columns, or smooth) follow. A mask marks where a target has more than a fraction of its peak, as
people who draw masks do. These are drawings, not physics.
"""

from dataclasses import dataclass

import numpy as np

from jaxsr.data.host_cache import PixelCache
from jaxsr.data.infrared import Infrared, Pair
from jaxsr.errors import InputError

KINDS = ("sky", "clouds", "bank", "ground", "sea")

_AREAS_PX = (1.5, 4.0, 8.0, 12.0, 18.0, 28.0, 45.0, 80.0, 200.0)
"""Areas of targets, at even steps of their distribution."""
_PEAKS = (14.0, 30.0, 45.0, 65.0, 90.0, 115.0, 145.0, 220.0)
"""Levels that a target's peak adds, at even steps of their distribution."""
_EMPTY = 0.1
"""Part of the scenes that have no target."""
_WHITE = 225.0
"""A target is not placed where the background is brighter: it would not show."""


@dataclass(frozen=True)
class _Draws:
    """Uniform numbers of one scene, handed out in order."""

    stream: np.random.Philox

    def __call__(self, *shape: int) -> np.ndarray:
        words = self.stream.random_raw(int(np.prod(shape, dtype=np.int64)))
        return (words >> np.uint64(11)).astype(np.float64).reshape(shape) / 2.0**53

    def between(self, low: int | float, high: int | float) -> float:
        return low + (high - low) * float(self(1)[0])

    def chance(self, probability: float) -> bool:
        return float(self(1)[0]) < probability

    def along(self, steps: tuple[float, ...]) -> float:
        """A number whose distribution has these values at even steps."""
        step, part = divmod(self.between(0, len(steps) - 1), 1.0)
        return steps[int(step)] + part * (steps[int(step) + 1] - steps[int(step)])

    def normals(self, *shape: int) -> np.ndarray:
        """Nearly normal, standard deviation 1: the scaled sum of four uniforms (Irwin–Hall)."""
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
    # Black is black: a target adds to the sensor's values.
    level = np.maximum(_background(draw, kind, side), 0.0)
    mask = np.zeros((side, side), np.uint8)
    noise = 0.15 + 5.0 * draw.between(0, 1) ** 4
    if not draw.chance(_EMPTY):
        for _ in range(1 + int(draw.between(0, 1) ** 3 * 4)):
            _place_target(draw, level, mask, least=4.0 * noise + 8.0)
    level = _blurred(level, draw.between(0, 1) ** 2 / 4)
    level = np.clip(level, 0.0, 255.0) + _sensor_noise(draw, side, noise)
    image = np.clip(np.floor(level + 0.5), 0, 255).astype(np.uint8)
    return np.repeat(image[..., None], 3, axis=-1), mask


def open_scenes(
    count: int,
    *,
    seed: int = 0,
    side: int = 256,
    split: str = "train",
    cache: PixelCache | None = None,
) -> Infrared:
    """`count` scenes as a split; "train", "validation" and "test" have no scene in common.

    Args:
      count: scenes.
      seed, side: see `scene`.
      split: "train", "validation" or "test".
      cache: keeps drawn scenes; others are drawn at each use. Default: one of a quarter of the free
        memory.
    """
    offsets = {"train": 0, "validation": 1 << 40, "test": 1 << 41}
    if split not in offsets:
        raise InputError(f"split must be one of {', '.join(offsets)}, got {split!r}")
    if count < 1:
        raise InputError(f"count must be at least 1 scene, got {count}")
    cache = cache if cache is not None else PixelCache(None)

    def load(name: str) -> Pair:
        key = (seed, side, name)
        gray_and_mask = cache.get(key)
        if gray_and_mask is None:
            number = offsets[split] + int(name.rsplit("_", 1)[-1])
            image, mask = scene(seed, number, side=side)
            gray_and_mask = cache.keep(key, np.stack([image[..., 0], mask]))
        gray, mask = gray_and_mask
        return np.repeat(gray[..., None], 3, axis=-1), mask

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


def _background(draw: _Draws, kind: str, side: int) -> np.ndarray:
    """Layers of one kind, in levels; they may lie outside 0…255."""
    level = _sky(draw, side)
    contrast = draw.between(8, 60) if draw.chance(0.6) else draw.between(60, 190)
    if draw.chance(0.2):
        contrast = -contrast  # dark on bright
    if kind == "clouds" or (kind in ("bank", "sea") and draw.chance(0.4)):
        level = _clouds(draw, level, contrast * draw.between(0.5, 1.0))
    if draw.chance(0.1):
        level = level + draw.between(-60, 120) * _band(draw, side)
    if kind == "bank":
        level = _bank(draw, level, contrast)
    if kind == "ground":
        level = _ground(draw, level)
    if kind == "sea":
        level = _sea(draw, level)
    return level


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
    draw: _Draws,
    side: int,
    *,
    cell: float,
    count: int,
    stretch: float = 1.0,
    fall: float = 0.55,
) -> np.ndarray:
    total, weight, sum_of_weights = np.zeros((side, side)), 1.0, 0.0
    for _ in range(count):
        total += weight * _noise(draw, side, cell=max(cell, 2.0), stretch=stretch)
        sum_of_weights += weight
        cell, weight = cell / 2, weight * fall
    return total / sum_of_weights


def _edge(field: np.ndarray, softness: float) -> np.ndarray:
    """0 below 0 and 1 above `softness`, smooth between."""
    part = np.clip(field / softness, 0.0, 1.0)
    return part * part * (3.0 - 2.0 * part)


def _sky(draw: _Draws, side: int) -> np.ndarray:
    place = np.arange(side) / side - 0.5
    ramp = draw.between(-60, 60) * place[:, None] + draw.between(-25, 25) * place
    haze = _octaves(draw, side, cell=side / draw.between(1.5, 4), count=2)
    return draw.between(25, 185) + ramp + draw.between(0, 40) * (haze - 0.5)


def _clouds(draw: _Draws, level: np.ndarray, contrast: float) -> np.ndarray:
    """Clouds with edges from sharp to misty, in patches, streaks or a whole cover."""
    side = len(level)
    stretch = draw.between(0.7, 1.6) if draw.chance(0.6) else draw.between(2.0, 5.0)
    cell, fall = side / draw.between(1.5, 7), draw.between(0.4, 0.65)
    field = _octaves(draw, side, cell=cell, count=6, stretch=stretch, fall=fall)
    place = np.arange(side) / side - 0.5
    field += draw.between(-0.4, 0.4) * place[:, None] + draw.between(-0.3, 0.3) * place
    cover = _edge(field - draw.between(0.3, 0.6), draw.between(0.06, 0.5))
    texture = _octaves(draw, side, cell=side / draw.between(4, 20), count=4, stretch=stretch)
    depth = draw.between(0.1, 0.9)
    return level + cover * (contrast * (1.0 - depth + 2.0 * depth * (texture - 0.25)))


def _band(draw: _Draws, side: int) -> np.ndarray:
    """A straight band with soft edges, in 0…1: a trail or a part of the optics."""
    t = draw.between(-2, 2)
    cosine, sine = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    place = np.arange(side) - side * draw.between(0.2, 0.8)
    distance = cosine * place + (sine * place)[:, None]
    width = side * draw.between(0.02, 0.25)
    return np.clip(1.0 - (distance / width) ** 2, 0.0, 1.0) ** 2


def _outline(draw: _Draws, side: int, *, least: float, most: float) -> np.ndarray:
    """How far each pixel lies below a ragged line across the image, over the side."""
    cell, stretch = side / draw.between(1.5, 6), draw.between(0.7, 2.0)
    fall = draw.between(0.4, 0.7)
    ragged = _octaves(draw, side, cell=cell, count=6, stretch=stretch, fall=fall) - 0.5
    rows = np.arange(side)[:, None] / side
    tilt = draw.between(-0.3, 0.3) * (np.arange(side) / side - 0.5)
    return rows - draw.between(least, most) + tilt + draw.between(0.1, 0.9) * ragged


def _bank(draw: _Draws, level: np.ndarray, contrast: float) -> np.ndarray:
    """A bank of clouds, hills or trees over a part of the image."""
    side = len(level)
    inside = _edge(_outline(draw, side, least=0.2, most=0.9), draw.between(0.01, 0.15))
    texture = _octaves(draw, side, cell=side / draw.between(2, 24), count=5)
    body = level + contrast * (0.6 + draw.between(0.2, 1.2) * (texture - 0.4))
    if draw.chance(0.3):
        body = body + _slope(draw, side) * draw.between(-60, 60)
    if draw.chance(0.3):
        inside = inside[::-1]
    return level + inside * (body - level)


def _slope(draw: _Draws, side: int) -> np.ndarray:
    """A slope over the image, in -0.5…0.5, downwards or across."""
    place = np.arange(side) / side - 0.5
    return np.broadcast_to(place[:, None] if draw.chance(0.7) else place, (side, side))


def _ground(draw: _Draws, level: np.ndarray) -> np.ndarray:
    """Fields in stripes, roofs and poles, below a horizon or everywhere."""
    side = len(level)
    stretch = draw.between(1, 6)
    field = _octaves(draw, side, cell=side / draw.between(6, 40), count=4, stretch=stretch)
    ground = draw.between(30, 150) + draw.between(15, 130) * (field - 0.4)
    rows = np.arange(side)
    for _ in range(int(draw.between(0, 5))):  # fields and roads, one behind the other
        top = int(draw.between(0, side))
        lean = draw.between(-0.15, 0.15) * (np.arange(side) - side / 2)
        below = _edge(rows[:, None] - top + lean, draw.between(1, 4))
        ground = ground + below * draw.between(-40, 40)
    for _ in range(int(draw.between(0, 7))):  # roofs and walls
        top, left = (int(draw.between(0, side - 8)) for _ in range(2))
        height, width = (int(draw.between(3, side / 4)) for _ in range(2))
        ground[top : top + height, left : left + width] += draw.between(-40, 60)
    for _ in range(int(draw.between(0, 6))):  # poles
        top, left = int(draw.between(0, side - 8)), int(draw.between(0, side - 2))
        height, width = int(draw.between(6, side / 4)), 1 + int(draw.between(0, 2))
        ground[top : top + height, left : left + width] += draw.between(-30, 60)
    if draw.chance(0.3):
        return ground
    inside = _edge(_outline(draw, side, least=0.1, most=0.7), draw.between(0.005, 0.05))
    return level + inside * (ground - level)


def _sea(draw: _Draws, level: np.ndarray) -> np.ndarray:
    """Waves with glints below a straight horizon, or everywhere."""
    side = len(level)
    horizon = 0 if draw.chance(0.4) else int(draw.between(0.05, 0.7) * side)
    waves = _octaves(
        draw, side, cell=side / draw.between(16, 80), count=4, stretch=draw.between(2, 6)
    )
    water = draw.between(25, 140) + draw.between(5, 80) * (waves - 0.5)
    glints = draw(side, side) < draw.between(0, 0.001)
    water += np.where(glints, draw.between(5, 30), 0.0)
    slope = draw.between(-40, 40) * (np.arange(side) / side - 0.5)[:, None]
    level = level.copy()
    level[horizon:] = (water + slope)[horizon:]
    return level


def _blurred(level: np.ndarray, weight: float) -> np.ndarray:
    """Each pixel mixed with its four neighbours, in both axes, the border repeated."""
    for axis in (0, 1):
        places = np.arange(level.shape[axis])
        before, after = np.maximum(places - 1, 0), np.minimum(places + 1, places[-1])
        neighbours = level.take(before, axis) + level.take(after, axis)
        level = (1.0 - 2.0 * weight) * level + weight * neighbours
    return level


def _sensor_noise(draw: _Draws, side: int, amount: float) -> np.ndarray:
    noise = amount * draw.normals(side, side)
    if draw.chance(0.4):  # as scaled or compressed images have it
        noise = 1.6 * _blurred(noise, draw.between(0.1, 0.3))
    if draw.chance(0.25):
        noise = noise + draw.between(0, 3) * draw.normals(side)
    if draw.chance(0.1):
        noise = noise + draw.between(0, 2) * draw.normals(side)[:, None]
    return noise


def _place_target(draw: _Draws, level: np.ndarray, mask: np.ndarray, *, least: float) -> None:
    """Adds one target, of one to four blobs that touch, and marks it."""
    side = len(level)
    area, peak = draw.along(_AREAS_PX), max(draw.along(_PEAKS), least)
    for _ in range(6):
        row, column = draw.between(0, side), draw.between(0, side)
        if level[int(row), int(column)] < _WHITE:
            break
    # Where a blob has fallen to `threshold` of its peak, its mask ends.
    threshold = draw.between(0.12, 0.4)
    square = 8.0 * (1.0 - np.sqrt(np.sqrt(threshold)))  # of the distance, in widths of the blob
    width = np.sqrt(area / (3.14159265 * square))
    profile = _blob(draw, side, row, column, width)
    if area > 12.0 and draw.chance(0.4):
        for _ in range(1 + int(draw.between(0, 3))):
            down, right = (draw.between(-2.0, 2.0) * width for _ in range(2))
            part = _blob(draw, side, row + down, column + right, width * draw.between(0.4, 0.9))
            profile = profile + draw.between(0.4, 1.0) * part
    if draw.chance(0.15):
        profile = np.minimum(profile, 0.6)  # saturated: a flat top
    top = profile.max()
    if top <= 0.0:
        return
    profile = profile / top
    level += peak * profile
    mask[profile > threshold] = 1


def _blob(draw: _Draws, side: int, row: float, column: float, width: float) -> np.ndarray:
    """An ellipse that fades like a Gaussian of this width, 1 at its middle."""
    aspect = draw.between(0.5, 1.0) if draw.chance(0.8) else draw.between(0.2, 0.5)
    # A turn by a rational point of the circle: no sine.
    t = draw.between(-1, 1)
    cosine, sine = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    down, right = np.arange(side) + 0.5 - row, np.arange(side) + 0.5 - column
    along = cosine * right + (sine * down)[:, None]
    across = (cosine * down)[:, None] - sine * right
    stretch = np.sqrt(aspect)
    # At least a pixel's own extent: thinner ones would fall between pixels.
    long, short = max(width / stretch, 0.4), max(width * stretch, 0.4)
    distance = (along / long) ** 2 + (across / short) ** 2
    return np.clip(1.0 - distance / 8.0, 0.0, 1.0) ** 4
