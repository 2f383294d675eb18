"""Files that hold one photo: the same bytes, or one name with several endings and like pixels."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from jaxsr.data.decode import decode_rgb
from jaxsr.data.host_cache import PixelCache
from jaxsr.data.picture_file import UnreadablePicture
from jaxsr.data.processors import available_cpus

_SIDE = 16
"""Pixels of the small copies that are compared."""
_LARGER_SIDE = 32
"""Pixels of those of photos that are then alike: pages of text have one layout."""
_LEVELS = 8.0
"""Root mean square difference in levels up to which small copies may show one photo."""
_SHARE = 0.2
"""Mean square difference up to which they may, as a share of the sum of their variances: dark or
pale photos differ by few levels."""
_ROUNDING = 1e-3
"""Difference in levels that small copies of equal pixels may have."""
_BLOCK = 64
"""Small copies that are compared with others at once."""
_VALUES = 2**20
"""Pixels' values that are averaged at once."""


def same_photos(paths: Mapping[str, Path], cache: PixelCache) -> dict[str, str]:
    """For each name whose file holds the photo of an earlier one: that earlier name.

    Args:
      paths: files by name. Only those with equal lengths or equal names but for folder and ending
        are read.
      cache: of pixels by path, for those that are decoded already.
    """
    with ThreadPoolExecutor(available_cpus(), "same-photos") as pool:
        copies = _same_bytes(paths, pool)
        by_stem = defaultdict(list)
        for name, path in paths.items():
            if name not in copies:
                by_stem[path.stem.lower()].append(name)
        for stem in by_stem.values():
            if len(stem) == 1:
                continue
            firsts = dict.fromkeys(stem, "")
            for side in (_SIDE, _LARGER_SIDE):
                made = pool.map(lambda n, side=side: _small(paths[n], cache, side), firsts)
                firsts = _first_names(dict(zip(firsts, made, strict=True)))
            copies |= {name: first for name, first in firsts.items() if name != first}
    return {name: copies.get(original, original) for name, original in copies.items()}


def _first_names(small: Mapping[str, Float[np.ndarray, "s s 3"] | None]) -> dict[str, str]:
    """The names of alike photos, each with the first one's; photos without another are left out."""
    known = {name: copy for name, copy in small.items() if copy is not None}
    names, firsts = [*known], _first_alike([*known.values()]).tolist() if known else []
    counts = Counter(firsts)
    pairs = zip(names, firsts, strict=True)
    return {name: names[first] for name, first in pairs if counts[first] > 1}


def _same_bytes(paths: Mapping[str, Path], pool: ThreadPoolExecutor) -> dict[str, str]:
    def digest(name: str) -> bytes:
        with paths[name].open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    by_length = defaultdict(list)
    for name, path in paths.items():
        by_length[path.stat().st_size].append(name)
    # Most files are told apart by their length, without reading them.
    names = [name for names in by_length.values() if len(names) > 1 for name in names]
    digests, first = pool.map(digest, names), dict[bytes, str]()
    originals = {n: first.setdefault(d, n) for n, d in zip(names, digests, strict=True)}
    return {name: original for name, original in originals.items() if name != original}


def _small(path: Path, cache: PixelCache, side: int) -> Float[np.ndarray, "s s 3"] | None:
    """Means over equal parts of a photo, in parts of levels; None if it cannot be read."""
    pixels = cache.get(path)
    if pixels is None:
        try:
            pixels = decode_rgb(path)
        except (OSError, UnreadablePicture):  # a run that skips bad files says so itself
            return None
    height, width, channels = pixels.shape
    down, across = _means(height, side), _means(width, side)
    rows = max(1, _VALUES // (width * channels))
    strips = np.zeros((side, width * channels), np.float32)
    for top in range(0, height, rows):
        part = pixels[top : top + rows]
        strips += down[:, top : top + rows] @ part.reshape(len(part), -1).astype(np.float32)
    return np.einsum("xw,swc->sxc", across, strips.reshape(side, width, channels))


@lru_cache(8)
def _means(length: int, side: int) -> Float[np.ndarray, "s length"]:
    """The matrix that gives the means over equal parts."""
    edges, start = np.linspace(0, length, side + 1)[:, None], np.arange(length)
    shared = np.minimum(edges[1:], start + 1) - np.maximum(edges[:-1], start)
    return (shared.clip(0) * (side / length)).astype(np.float32)


def _first_alike(small: Sequence[Float[np.ndarray, "s s 3"]]) -> Int[np.ndarray, " n"]:
    """For each small copy the index of the first one of its photo.

    Photos are alike by `mean((a - b)²) <= _SHARE * (var(a) + var(b))`, and so correlate by at least
    `1 - _SHARE`. Sorted by their mean level, each is compared with the darker ones within reach.
    """
    count = len(small)
    order = np.argsort([copy.mean() for copy in small], kind="stable")
    detail = np.array([small[index] for index in order], np.float32).reshape(count, -1, 3)
    level = detail.mean(1)
    detail -= level[:, None]
    detail = detail.reshape(count, -1)
    deviation, gray = np.sqrt(np.square(detail).mean(1)), level.mean(1)
    is_flat = deviation < _ROUNDING
    detail /= np.where(is_flat, 1, deviation)[:, None] * detail.shape[1] ** 0.5
    detail[is_flat] = np.eye(1, detail.shape[1])
    photo = np.arange(count)
    for start in range(0, count, _BLOCK):
        block = slice(start, start + _BLOCK)
        low = int(np.searchsorted(gray, gray[start] - _LEVELS))
        correlation = detail[block] @ detail[low : block.stop].T
        a, b = np.nonzero(correlation >= 1 - _SHARE)
        correlation, a, b = correlation[a, b], a + start, b + low
        energy = np.square(deviation[a]) + np.square(deviation[b])
        difference = energy - 2 * correlation * deviation[a] * deviation[b]
        difference += np.square(level[a] - level[b]).mean(1)
        most = np.clip(_SHARE * energy, _ROUNDING**2, _LEVELS**2)
        is_alike = (difference <= most) & (b < a)
        later, places = np.unique(a[is_alike], return_index=True)
        for index, earlier in zip(later, b[is_alike][places], strict=True):
            photo[index] = photo[earlier]
    first = np.full(count, count)
    np.minimum.at(first, photo, order)
    result = np.empty(count, np.int64)
    result[order] = first[photo]
    return result
