"""Difference maps and histograms of a comparison as one picture.

A row shows one pair: the middle of the first picture pixel by pixel, as the first library made it;
where the two differ there (brighter is more, white is the row's largest difference over the whole
picture); and how often each difference occurs over all pictures, on a logarithmic scale.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from jaxsr.comparison.compare_ops import Group

_TILE, _GAP, _TEXT = 300, 16, 40
_BINS = 60


def draw_comparison(groups: Sequence[Group]) -> Image.Image:
    """One row for every pair that holds jaxsr."""
    rows = [
        (group, pair) for group in groups for pair in group.pairs if pair[0].startswith("jaxsr")
    ]
    width = 3 * _TILE + 4 * _GAP
    sheet = Image.new("RGB", (width, len(rows) * (_TILE + _TEXT + _GAP) + _GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for index, (group, (first, second)) in enumerate(rows):
        top = _GAP + index * (_TILE + _TEXT + _GAP)
        levels = group.pairs[first, second][0]
        title = (
            f"{group.method}: {first} against {second}; difference on 0…255: "
            f"max {levels.largest:.4g}, mean {levels.mean:.4g}, {levels.unequal:,} unequal"
        )
        draw.text((_GAP, top), title, fill="black", font=font)
        a, b = group.results[first][0], group.results[second][0]
        error_metrics = np.abs(a - b).max(-1)
        tiles = (
            _photo(a),
            _heat(error_metrics),
            _histogram([np.abs(x - y) for x, y in _pairs(group, first, second)], font),
        )
        for column, tile in enumerate(tiles):
            left = _GAP + column * (_TILE + _GAP)
            sheet.paste(tile, (left + (_TILE - tile.width) // 2, top + _TEXT // 2 + 4))
    return sheet


def _pairs(group: Group, first: str, second: str) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(group.results[first], group.results[second], strict=True))


def _middle(values: np.ndarray) -> np.ndarray:
    top, left = (max(0, (extent - _TILE) // 2) for extent in values.shape[:2])
    return values[top : top + _TILE, left : left + _TILE]


def _photo(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.clip(np.rint(_middle(values)), 0, 255).astype(np.uint8))


def _heat(error_metrics: np.ndarray) -> Image.Image:
    """Black through red and yellow to white."""
    share = _middle(error_metrics) / (error_metrics.max() or 1)
    ramp = np.clip(share[..., None] * 3 - np.arange(3), 0, 1)
    return Image.fromarray((255 * ramp).astype(np.uint8))


_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


def _histogram(error_metrics: list[np.ndarray], font: _Font) -> Image.Image:
    largest = max(float(x.max()) for x in error_metrics)
    tile = Image.new("RGB", (_TILE, _TILE), "white")
    draw = ImageDraw.Draw(tile)
    left, bottom, top = 50, _TILE - 26, 14
    draw.line([(left, top), (left, bottom), (_TILE - 1, bottom)], fill="black")
    if largest == 0:
        draw.text((left + 12, _TILE // 2), "no value differs", fill="black", font=font)
        return tile
    counts = np.sum([np.histogram(x, _BINS, (0, largest))[0] for x in error_metrics], 0)
    height = np.log10(np.maximum(counts, 1)) / max(np.log10(counts.max()), 1)
    step = (_TILE - left - 2) / _BINS
    for k, share in enumerate(height):
        if counts[k]:
            # One value still shows as a line of 2 px.
            y = bottom - max(2, share * (bottom - top))
            draw.rectangle([left + k * step, y, left + (k + 1) * step - 1, bottom], fill="#3465a4")
    draw.text((left, bottom + 4), "0", fill="black", font=font)
    text = f"{largest:.3g} of 255"
    draw.text((_TILE - draw.textlength(text, font) - 2, bottom + 4), text, fill="black", font=font)
    draw.text((2, top - 4), f"{counts.max():.0e}", fill="black", font=font)
    draw.text((34, bottom - 14), "1", fill="black", font=font)
    return tile
