"""Files that hold one photo: the same bytes, or one name with several endings and like pixels."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxsr.data.decode import decode_rgb
from jaxsr.data.picture_file import UnreadablePicture

_SIDE = 16
"""Pixels of the small copies that are compared."""
_ALIKE = 6.0
"""Mean difference in levels below which small copies show one photo: JPEG changes less, another
photo of the same name far more."""


def same_photos(paths: Mapping[str, Path]) -> dict[str, str]:
    """For each name whose file holds the photo of an earlier one: that earlier name.

    Args:
      paths: files by name. Only those with equal lengths or equal names but for folder and ending
        are read.
    """
    copies = _same_bytes(paths)
    by_stem = defaultdict(list)
    for name, path in paths.items():
        if name not in copies:
            by_stem[path.stem.lower()].append(name)
    for names in by_stem.values():
        seen: list[tuple[str, np.ndarray]] = []
        for name in names if len(names) > 1 else ():
            small = _small(paths[name])
            if small is None:
                continue
            original = next((n for n, s in seen if np.abs(s - small).mean() < _ALIKE), None)
            if original is None:
                seen.append((name, small))
            else:
                copies[name] = original
    return {name: copies.get(original, original) for name, original in copies.items()}


def _same_bytes(paths: Mapping[str, Path]) -> dict[str, str]:
    by_length = defaultdict(list)
    for name, path in paths.items():
        by_length[path.stat().st_size].append(name)
    first: dict[bytes, str] = {}
    copies = {}
    for names in by_length.values():
        if len(names) == 1:  # most files are told apart by their length, without reading them
            continue
        for name in names:
            with paths[name].open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            original = first.setdefault(digest, name)
            if original != name:
                copies[name] = original
    return copies


def _small(path: Path) -> np.ndarray | None:
    import cv2

    try:
        pixels = decode_rgb(path).astype(np.float32)
    except (OSError, UnreadablePicture):  # a run that skips bad files says so itself
        return None
    return cv2.resize(pixels, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
