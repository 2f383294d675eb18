"""Cuts images into tiles that a network can treat one by one without changing its result.

Sides are in input pixels. A tile is larger than the part of the result that is taken from it by the
network's margin (`receptive_field`), except at the image's own edge: there tile and image end
together, so that the network pads both alike. No tile hangs over an edge, and all tiles of a shape
share a program.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import NamedTuple

from jaxsr.errors import InputError
from jaxsr.restoration.receptive_field import Reach

Size = tuple[int, int]
"""(height, width)."""

MOST_PROGRAMS = 4
"""Tile shapes, and so compilations, that any number of image sizes leads to."""

# Device memory for a tile's values while the network runs.
_TILE_BYTES = 512 * 2**20
MOST_BYTES = 8 * 2**30
"""Side with a margin too large for that, or for an image that cannot be cut: half the memory of
an ordinary machine."""
_LARGEST_TILE = 512
# Results come back to the host as float32, and a row of them makes a band.
_LARGEST_RESULT = 1536
_SMALLEST_TILE = 64
# Overlaps cost: at least this many margins to a tile, so that three quarters of each axis count.
_MARGINS_PER_TILE = 8
# Least side of a tile's used part, where the requested tile has no room for its margins.
_LEAST_INNER = 32
APPROXIMATE_MARGIN = 16
# Beyond this, `approximate` takes its own margin even where an exact one is known.
LARGEST_EXACT_MARGIN = 64
# Fixed cost of one more tile, in pixels of computing.
_TILE_OVERHEAD = 2048
# Along one axis: with more tiles than that, the last one's waste is negligible.
_MOST_FITTED = 512


class Tile(NamedTuple):
    """One input window and the part of the result that is taken from it, in input pixels."""

    top: int
    left: int
    inner_top: int
    inner_left: int
    inner_bottom: int
    inner_right: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An image's tiles, in rows from top to bottom."""

    size: Size
    """Size of the image, after padding to the period."""
    shape: Size
    """Size of every tile."""
    compiled: bool
    """Whether the shape is one of those that the accelerator has a program for."""
    rows: tuple[tuple[Tile, ...], ...]

    @property
    def tiles(self) -> int:
        """How many."""
        return sum(map(len, self.rows))

    def spans(self, axis: int) -> list[tuple[int, int, int]]:
        """Tiles along an axis, 0 or 1: start, and the start and end of the part that is used."""
        if axis == 0:
            return [(row[0].top, row[0].inner_top, row[0].inner_bottom) for row in self.rows]
        return [(tile.left, tile.inner_left, tile.inner_right) for tile in self.rows[0]]

    @property
    def computed(self) -> int:
        """Input pixels computed, overlaps counted as often as they are."""
        return self.shape[0] * self.shape[1] * self.tiles


class WholePictureTooLarge(InputError):
    """A network with global statistics was given more than it can take at once."""


class Tiler:
    """Chooses tile shapes for a network and a set of images.

    Args:
      reach: of the network.
      tile: side of the largest tile in pixels. Default: from the network's memory needs.
      approximate: cut images even where that changes the result a little.
      uncut: never cut.
      sizes: of the images to come, if they are known: where there are at most two, tiles are
        fitted to them, and nothing is computed twice that need not be.
      devices: number that each image is spread over, because images do not share batches; None
        where images share them, and so fill the devices together.

    A tile that is not asked for takes at most `MOST_BYTES`.

    A `tile` that is too small for the network's margin becomes one that takes them and 32
    pixels more, and `note` says so.
    """

    def __init__(
        self,
        reach: Reach,
        *,
        tile: int | None = None,
        approximate: bool = False,
        uncut: bool = False,
        sizes: Iterable[Size] = (),
        devices: int | None = None,
    ) -> None:
        self.reach = reach
        self._devices = devices
        self._uncut = uncut or (reach.margin is None and not approximate)
        self.margin = APPROXIMATE_MARGIN if reach.margin is None else reach.margin
        if approximate and self.margin > LARGEST_EXACT_MARGIN:
            self.margin = APPROXIMATE_MARGIN
        self.margin = self._aligned(self.margin)
        self._asked = tile is not None
        self.side = self._aligned(tile or self._default_side())
        least = self._aligned(max(2 * self.margin + reach.period, reach.least_side))
        self.note = ""
        if self.side < least:
            self.side = self._aligned(max(least, 2 * self.margin + _LEAST_INNER))
            if tile is not None and not self._uncut:
                self.note = (
                    f"this network reads {self.margin} pixels beyond each side of a tile; tiles of "
                    f"{self.side} pixels take the place of --tile {tile}"
                )
        smallest = self._aligned(max(_SMALLEST_TILE, 2 * self.margin + 16))
        sides = [self.side]
        while len(sides) < MOST_PROGRAMS and self._aligned(sides[-1] // 2) >= smallest:
            sides.append(self._aligned(sides[-1] // 2))
        self._ladder = tuple((side, side) for side in sides)
        known = {self.padded(size) for size in sizes}
        self._known = known
        splits = (len(self._splits(length)) for length in chain(*known))
        can_be_fitted = len(known) <= 2 and max(splits, default=0) <= _MOST_FITTED
        self._fitted = {size: self._fit(size) for size in known} if can_be_fitted else {}

    def _aligned(self, length: int) -> int:
        return math.ceil(length / self.reach.period) * self.reach.period

    def _default_side(self) -> int:
        affordable = math.isqrt(_TILE_BYTES // self._pixel_bytes) // 32 * 32
        most = min(affordable, _LARGEST_TILE, _LARGEST_RESULT // self.reach.scale)
        # A margin too large for that: as much as memory allows.
        largest = math.isqrt(self.max_pixels) // self.reach.period * self.reach.period
        wide = min(_MARGINS_PER_TILE * self.margin, largest)
        return max(most, wide, min(3 * self.margin, largest), _SMALLEST_TILE)

    @property
    def _pixel_bytes(self) -> int:
        return 4 * max(self.reach.live, 48)

    @property
    def max_pixels(self) -> int:
        """Pixels of the largest tile, or image that cannot be cut, within `MOST_BYTES`."""
        return MOST_BYTES // self._pixel_bytes

    def tile_bytes(self, shape: Size) -> int:
        """Memory of a tile's values while the network runs, in float32."""
        return math.prod(shape) * self._pixel_bytes

    def at_once(self, most: int) -> int:
        """Tiles of any shape, from 1 to `most`, that a device takes: in `MOST_BYTES` together."""
        if self._devices and self._fitted:
            plans = [self._cut(size, shape, compiled=True) for size, shape in self._fitted.items()]
            most = min(most, max(math.ceil(plan.tiles / self._devices) for plan in plans))
        shapes = self._known if self._uncut else [*self._fitted.values()] or [self._ladder[0]]
        largest = max(map(self.tile_bytes, shapes), default=MOST_BYTES)
        return max(1, min(most, MOST_BYTES // largest))

    def padded(self, size: Size) -> Size:
        """The size that an image is mirrored out to, for networks with an internal stride."""
        least = self.reach.least_side
        return self._aligned(max(size[0], least)), self._aligned(max(size[1], least))

    def plan(self, size: Size) -> Plan:
        """The tiles of an image of this size.

        Raises:
          WholePictureTooLarge: it may not be cut, or the margins leave only larger tiles, and it
            is too large to be treated whole.
        """
        size = self.padded(size)
        if self._uncut:
            if self.reach.margin is None and math.prod(size) > self.max_pixels:
                raise WholePictureTooLarge(
                    f"{self._needs(size)}, and this network cannot be tiled exactly "
                    f"({self.reach.cause}); --tiling approximate cuts it all the same, "
                    "--tiling off insists"
                )
            return self._cut(size, size, compiled=True)
        least = math.prod(
            min(side, length) for side, length in zip(self._ladder[-1], size, strict=True)
        )
        if not self._asked and min(math.prod(size), least) > self.max_pixels:
            raise WholePictureTooLarge(
                f"{self._needs(self._ladder[-1])}, and exact tiles of this network, with "
                f"{self.margin} pixels around each, are no smaller; --tiling approximate cuts it "
                f"with {APPROXIMATE_MARGIN}, --tile {self.side} insists"
            )
        if size in self._fitted:
            return self._cut(size, self._fitted[size], compiled=True)
        fitting = [s for s in self._ladder if s[0] <= min(size)]
        if fitting:
            plans = [self._cut(size, shape, compiled=True) for shape in fitting]
            return min(plans, key=lambda plan: (plan.computed, -plan.shape[0]))
        # Narrower than any program's tile: such an image is cut along its length only.
        longest = self._aligned(max(self.side, min(4 * self.side, self.side**2 // min(size))))
        shape = min(size[0], longest), min(size[1], longest)
        return self._cut(size, shape, compiled=False)

    def _needs(self, size: Size) -> str:
        needed, most = (n / 2**30 for n in (self.tile_bytes(size), MOST_BYTES))
        return f"{size[1]}×{size[0]} pixels at once would need {needed:.1f} GiB, more than {most:g}"

    def without_tiles(self, cause: str) -> "Tiler":
        """A tiler that cuts no image, for the reason given."""
        return Tiler(replace(self.reach, margin=None, cause=cause))

    def insist(self, size: Size) -> Plan:
        """The image as one tile, however large."""
        size = self.padded(size)
        return self._cut(size, size, compiled=True)

    def _fit(self, size: Size) -> Size:
        """The tile shape, of the largest tile's area at most, that is computed soonest."""
        area = self.side**2
        costs: dict[Size, int] = {}
        for heights, widths in product(*map(self._splits, size)):
            shape = self._share(size[0], heights), self._share(size[1], widths)
            if math.prod(shape) <= area:
                rounds = math.ceil(heights * widths / (self._devices or 1))
                cost = (math.prod(shape) + _TILE_OVERHEAD) * rounds
                costs[shape] = min(cost, costs.get(shape, cost))
        return min(costs, key=lambda shape: costs[shape], default=self._ladder[0])

    def _splits(self, length: int) -> range:
        least = math.ceil(length / max(self.side - 2 * self.margin, 1))
        return range(1, 1 + max(1 + least, self._devices or 1))

    def _share(self, length: int, parts: int) -> int:
        """Side of `parts` equal tiles that cover a length, with a margin on each inner side."""
        share = math.ceil((length + 2 * self.margin * (parts - 1)) / parts)
        return min(length, self._aligned(max(share, self.reach.least_side)))

    def _cut(self, size: Size, shape: Size, *, compiled: bool) -> Plan:
        vertical, horizontal = (
            list(_spans(length, tile, self.margin, self.reach.period))
            for length, tile in zip(size, shape, strict=True)
        )
        rows = tuple(
            tuple(
                Tile(top, left, inner_top, inner_left, inner_bottom, inner_right)
                for left, inner_left, inner_right in horizontal
            )
            for top, inner_top, inner_bottom in vertical
        )
        return Plan(size=size, shape=shape, compiled=compiled, rows=rows)


def _spans(length: int, tile: int, margin: int, period: int) -> Iterator[tuple[int, int, int]]:
    """(start of the window, start and end of its used part) along one axis."""
    if tile >= length:
        yield 0, 0, length
        return
    step = (tile - 2 * margin) // period * period
    count = 1 + math.ceil((length - tile) / step)
    starts = [min(index * step, length - tile) for index in range(count)]
    inner = 0
    for index, start in enumerate(starts):
        end = length if index == count - 1 else start + tile - margin
        yield start, inner, end
        inner = end
