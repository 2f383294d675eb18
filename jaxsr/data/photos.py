"""Photos to train or validate on: found, checked before the first step, read and kept in memory.

A photo is `uint8 (height, width, 3)`, RGB, upright; `decode.py` describes the conversion of other
kinds. Without a folder the photos are those of `built_in_photos.py`.
"""

import dataclasses
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from jaxsr.data.archives import archived_files, is_archive
from jaxsr.data.built_in_photos import (
    BUILT_IN_TRAINING,
    BUILT_IN_VALIDATION,
    built_in_photos,
)
from jaxsr.data.decode import (
    claims_to_be_picture,
    decode_rgb,
    few_levels_note,
    has_few_levels,
    picture_size,
)
from jaxsr.data.held_out import is_held_out
from jaxsr.data.host_cache import PixelCache
from jaxsr.data.input_files import Listing, list_files
from jaxsr.data.picture_file import ChangedFileError, UnreadablePicture
from jaxsr.data.processors import available_cpus
from jaxsr.data.same_photos import same_photos
from jaxsr.data.sources import unread_kind
from jaxsr.errors import InputError, MissingFileError, counted, first_of, printable

_NAMED = 8  # files that a message names before it says "and n more"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BadFile:
    """A file that cannot be trained on."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Photos:
    """Checked photos in a fixed order (by name); reading is safe from any number of threads."""

    source: str
    """Where they came from, for messages."""
    names: tuple[str, ...]
    """Paths relative to the folder, with forward slashes."""
    sizes: np.ndarray
    """int32 (n, 2): height and width of each, after EXIF orientation."""
    paths: tuple[Path, ...]
    cache: PixelCache
    """Decoded photos, shared by everything that was split from one scan."""
    skipped: tuple[BadFile, ...] = ()
    fractions: tuple[float, ...] = ()
    """Size of each photo relative to its file's, where some are shrunk; else empty."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def nbytes(self) -> int:
        """Bytes of all photos decoded."""
        return 3 * int(np.prod(self.sizes, axis=1, dtype=np.int64).sum())

    def read(self, index: int | np.integer) -> UInt8[np.ndarray, "h w 3"]:
        """Photo `index`, read-only, from memory or else decoded from its file.

        Raises:
          ChangedFileError: the file changed or went away after it was checked.
        """
        path, fraction = self.paths[index], self._fraction(index)
        key = path if fraction == 1 else (path, fraction)
        pixels = self.cache.get(key)
        if pixels is not None:
            return pixels
        pixels = _shrunk(self._decoded(path), fraction)
        self._check_size(index, pixels.shape[:2])
        return self.cache.keep(key, pixels)

    def read_crop(
        self, index: int | np.integer, *, top: int, left: int, side: int
    ) -> UInt8[np.ndarray, "side side 3"]:
        """A square of photo `index`; of one that will not be kept, no more is converted.

        Raises:
          ChangedFileError: see `read`.
        """
        path = self.paths[index]
        height, width = map(int, self.sizes[index])
        if self._fraction(index) != 1 or self.cache.keeps(path, 3 * height * width):
            return self.read(index)[top : top + side, left : left + side]

        def cut(image: Image.Image) -> Image.Image:
            self._check_size(index, (image.height, image.width))
            return image.crop((left, top, left + side, top + side))

        return self._decoded(path, cut=cut)

    def _fraction(self, index: int | np.integer) -> float:
        return self.fractions[index] if self.fractions else 1.0

    def _decoded(self, path: Path, **options: Any) -> np.ndarray:
        try:
            return decode_rgb(path, **options)
        except (OSError, UnreadablePicture) as error:
            raise ChangedFileError(
                f"{path} was readable when this run checked it and no longer is: {_reason(error)}; "
                f"restore the file and resume"
            ) from error

    def _check_size(self, index: int | np.integer, size: tuple[int, int]) -> None:
        if size != tuple(self.sizes[index]):
            was, now = "×".join(map(str, self.sizes[index])), "×".join(map(str, size))
            raise ChangedFileError(
                f"{self.paths[index]} was {was} px (height×width) when this run checked it and is "
                f"{now} now; restore the file and resume"
            )

    def at_fractions(self, fractions: Sequence[float], *, crop: int) -> "Photos":
        """Each photo once per fraction of its size, those left out that a crop would not fit.

        Shrunk by Pillow's antialiased bicubic. A photo at another size is another photo to a
        network that enlarges: its details lie elsewhere.

        Raises:
          ValueError: a fraction is not above 0 and at most 1, or none is given.
        """
        if not fractions or not all(0 < fraction <= 1 for fraction in fractions):
            raise InputError(
                f"fractions must be one or more numbers above 0 and at most 1, got {fractions}"
            )
        shrunk = [
            (index, fraction, size)
            for fraction in fractions
            for index, full_size in enumerate(self.sizes)
            if min(size := _shrunk_size(full_size, fraction)) >= crop
        ]
        return dataclasses.replace(
            self.subset([index for index, _, _ in shrunk]),
            sizes=np.array([size for _, _, size in shrunk], np.int32).reshape(-1, 2),
            fractions=tuple(fraction for _, fraction, _ in shrunk),
        )

    def subset(self, indices: Sequence[int]) -> "Photos":
        """The photos at `indices`, in that order, sharing this object's cache."""
        return Photos(
            source=self.source,
            names=tuple(self.names[i] for i in indices),
            sizes=self.sizes[list(indices)],
            paths=tuple(self.paths[i] for i in indices),
            cache=self.cache,
            skipped=self.skipped,
            fractions=tuple(self.fractions[i] for i in indices) if self.fractions else (),
        )

    def split(self, held_out: float) -> "tuple[Photos, Photos]":
        """Parts the photos into those to train on and those held out, by their names alone.

        A name's SHA-256 decides, so that photos added later do not move old ones; with few photos
        at least one is held out. Copies stay on one side (`same_photos.py`). Near copies, such as
        neighbouring frames of a film, are not recognised: give such data a `--val` folder.

        Args:
          held_out: the fraction to hold out, between 0 and 1, met on average.

        Raises:
          ValueError: the fraction is out of range, or no photo would be left on one side.
        """
        if not 0 < held_out < 1:
            raise InputError(
                f"held_out must be a fraction between 0 and 1, got {held_out}; "
                f"give --val FOLDER to hold out nothing"
            )
        copies = same_photos(dict(zip(self.names, self.paths, strict=True)), self.cache)
        names = [copies.get(name, name) for name in self.names]
        in_validation = is_held_out(names, held_out)
        if in_validation.all():
            raise InputError(
                f"{self.source} has {counted(len(self), 'photo')}, too few to hold out "
                f"held_out={held_out} for validation and train on the rest; add photos, or give "
                "--val FOLDER"
            )
        parts = (np.flatnonzero(~in_validation), np.flatnonzero(in_validation))
        return self.subset(parts[0].tolist()), self.subset(parts[1].tolist())


def open_training_photos(
    data: Path | None,
    val: Path | None,
    *,
    built_in: bool = False,
    crop: int,
    val_crop: int = 1,
    on_bad_file: Literal["error", "skip"] = "error",
    held_out: float = 0.1,
    cache_bytes: int | None = None,
    scratch_folder: Path | None = None,
) -> tuple[Photos, Photos]:
    """The photos to train on and those to validate on, which never overlap.

    Without `val`, a fraction of `data` is held out (`Photos.split`), or with no `data` either, the
    built-in validation photos. With `val`, all of `data` is trained on.

    Args:
      data: folder to train on; None for the built-in photos.
      val: folder to validate on; None to hold some of `data` out.
      built_in: add the built-in photos to those of `data`: theirs to train on, and without `val`
        theirs to validate on.
      crop: least height and width in pixels of a training photo.
      val_crop: least height and width in pixels of a photo from `val`.
      on_bad_file, cache_bytes, scratch_folder: as for `open_photos`; the cache is shared.
      held_out: the fraction held out of `data` when there is no `val`.

    Raises:
      ValueError, FileNotFoundError: as `open_photos`; or the two folders share files.
    """
    cache = PixelCache(cache_bytes, scratch_folder=scratch_folder)
    options = {"on_bad_file": on_bad_file, "cache": cache}
    photos = open_photos(data, crop=crop, **options)
    built_in_parts = None
    if built_in and data is not None:
        built_in_parts = _part_built_in(open_photos(None, crop=crop, **options), crop)
    if val is not None:
        photos = _together(photos, built_in_parts[0]) if built_in_parts else photos
        validation = open_photos(val, crop=val_crop, **options)
        _refuse_overlap(photos, validation)
        return photos, validation
    if data is None:
        return _part_built_in(photos, crop)
    training, validation = photos.split(held_out)
    return (
        (_together(training, built_in_parts[0]), _together(validation, built_in_parts[1]))
        if built_in_parts
        else (training, validation)
    )


def _part_built_in(photos: Photos, crop: int) -> tuple[Photos, Photos]:
    """The built-in photos to train on and those to validate on."""
    training = [i for i, name in enumerate(photos.names) if name in BUILT_IN_TRAINING]
    validation = [i for i, name in enumerate(photos.names) if name in BUILT_IN_VALIDATION]
    if not training or not validation:
        raise InputError(
            f"{photos.source}: {len(training)} left to train on and {len(validation)} to validate "
            f"on, at least one of each is needed; use a smaller crop than {crop} or give --data "
            "FOLDER"
        )
    return photos.subset(training), photos.subset(validation)


def _together(first: Photos, second: Photos) -> Photos:
    """The photos of both, `first`'s before `second`'s; they share a cache already."""
    return Photos(
        source=f"{first.source} and {second.source}",
        names=first.names + second.names,
        sizes=np.concatenate((first.sizes, second.sizes)),
        paths=first.paths + second.paths,
        cache=first.cache,
        skipped=first.skipped + second.skipped,
    )


def open_photos(
    folder: Path | None,
    *,
    crop: int,
    on_bad_file: Literal["error", "skip"] = "error",
    check: Literal["decode", "header"] = "decode",
    cache_bytes: int | None = None,
    scratch_folder: Path | None = None,
    threads: int | None = None,
    cache: PixelCache | None = None,
) -> Photos:
    """Finds every image below `folder` and checks each, before anything is trained.

    Images in tar files and LMDBs are found as well (`archives.py`).

    Hidden files and files that neither are named nor look like an image are passed over.

    Args:
      folder: searched recursively, links followed, or one archive; None for all built-in photos.
      crop: least height and width in pixels.
      on_bad_file: "error" rejects the folder and names the fault; "skip" leaves the bad files out
        and says in one warning how many and which (`Photos.skipped` has all of them).
      check: "decode" reads every file whole, which finds truncated ones, and keeps as many as fit
        in the cache, so that the work is not lost; "header" is quick and leaves truncated files to
        stop the run when their turn comes.
      cache_bytes: bound on decoded photos kept in host memory. Default: a quarter of free memory.
      scratch_folder: on a local disk; decoded photos beyond `cache_bytes` are kept there in a file
        that vanishes with the process. Without it they are decoded anew for every crop, which for
        photos of several megapixels starves most steps.
      threads: files checked at once. Default: one per CPU that this process may use.
      cache: an existing cache to share, instead of the two above.

    Raises:
      FileNotFoundError: there is no such folder.
      ValueError: no image in it, or (under "error") bad files among them.
    """
    if crop < 1:
        raise InputError(f"crop must be at least 1 pixel, got {crop}")
    if on_bad_file not in ("error", "skip"):
        raise InputError(f"on_bad_file must be 'error' or 'skip', got {on_bad_file!r}")
    if check not in ("decode", "header"):
        raise InputError(f"check must be 'decode' or 'header', got {check!r}")
    if cache is None:
        cache = PixelCache(cache_bytes, scratch_folder=scratch_folder)
    if folder is None:
        source, candidates, bad = "the built-in photos", built_in_photos(), []
    else:
        source = str(folder)
        candidates, bad = _search(Path(folder))

    faint: set[str] = set()

    def examine(path: Path) -> tuple[int, int] | str:
        try:
            if check == "header":
                size = picture_size(path)
            else:
                pixels = decode_rgb(path)
                size = pixels.shape[:2]
                if has_few_levels(path, pixels):
                    faint.add(path.name)
        except (OSError, UnreadablePicture) as error:
            return _reason(error)
        if min(size) < crop:
            return f"{size[1]}×{size[0]} px (width×height), less than crop={crop}"
        if check == "decode":
            cache.keep(path, pixels)
        return size

    with ThreadPoolExecutor(threads or available_cpus(), "check-photos") as pool:
        results = list(pool.map(examine, candidates.values()))
    good = {n: r for n, r in zip(candidates, results, strict=True) if not isinstance(r, str)}
    bad += [BadFile(n, r) for n, r in zip(candidates, results, strict=True) if isinstance(r, str)]
    bad.sort(key=lambda file: file.name)

    if bad and on_bad_file == "error":
        raise InputError(
            f"{len(bad)} of {len(good) + len(bad)} images in {source} cannot be used: "
            f"{_listing(bad)}; mend or remove them, choose a smaller crop if they are too small, "
            f"or leave them out with --on-bad-file skip"
        )
    if not good:
        detail = f" (skipped {len(bad)}: {_listing(bad)})" if bad else ""
        raise InputError(
            f"no image in {source}{detail}; give a folder that holds PNG, JPEG, TIFF, WebP or "
            f"other images, at any depth"
        )
    if bad:
        _log.warning(
            "skipped %s in %s: %s", counted(len(bad), "bad file"), source, _listing(bad, 1000)
        )
    if faint:
        shown = f"{len(faint)} of the images in {source}, such as {min(faint)}"
        _log.warning("%s", few_levels_note(shown))
    paths = tuple(candidates[name] for name in good)
    return Photos(
        source=source,
        names=tuple(good),
        sizes=np.array(list(good.values()), np.int32).reshape(-1, 2),
        paths=paths,
        cache=cache,
        skipped=tuple(bad),
    )


def _shrunk_size(size: Sequence[int] | np.ndarray, fraction: float) -> tuple[int, int]:
    return round(int(size[0]) * fraction), round(int(size[1]) * fraction)


def _shrunk(pixels: np.ndarray, fraction: float) -> np.ndarray:
    if fraction == 1:
        return pixels
    height, width = _shrunk_size(pixels.shape, fraction)
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


def _search(folder: Path) -> tuple[dict[str, Path], list[BadFile]]:
    """Image files below `folder` by relative name, sorted, and the paths that could not be read."""
    if not folder.exists():
        raise MissingFileError(f"no folder {folder}; give the path of images, a .tar or an LMDB")
    if is_archive(folder):
        listing, folder = Listing(files=[folder]), folder.parent
    elif folder.is_dir():
        listing = list_files(folder)
    elif kind := unread_kind(folder):
        raise InputError(f"{folder} is {kind}")
    else:
        raise InputError(f"{folder} is a file, not a folder; give the folder that holds it")
    files: list[Path] = []
    for path in listing.files:
        if not is_archive(path):
            files.append(path)
            continue
        inside = archived_files(path)
        listing.passed_over += inside.passed_over
        listing.unreadable += inside.unreadable
        images = [file for file in inside.files if claims_to_be_picture(file)]
        files += images
        # An LMDB's keys have no ending that could say that a value is a label.
        others = [f.name for f in inside.files if not f.suffix and f not in set(images)]
        if others or not images:
            of_all = f"{len(inside.files) - len(images)} of {counted(len(inside.files), 'file')}"
            such = f", such as {printable(others[0], 80)}" if others else ""
            reason = f"{of_all} are not images{such}" if inside.files else "it is empty"
            listing.passed_over.append((path, reason))
    pictures: dict[str, Path] = {}
    bad = []
    for path, reason in listing.unreadable:
        what = "folder cannot be listed: " if os.path.isdir(path) else ""
        bad.append(
            BadFile(path.relative_to(folder).as_posix(), what + reason[:1].lower() + reason[1:])
        )
    for path in files:
        name = path.relative_to(folder).as_posix()
        if kind := unread_kind(path):
            listing.passed_over.append((path, kind))
            continue
        try:
            if claims_to_be_picture(path):
                pictures[name] = path
        except OSError as error:
            bad.append(BadFile(name, _reason(error)))
    for note in listing.notes():
        _log.warning("%s", note)
    return pictures, bad


def _refuse_overlap(photos: Photos, validation: Photos) -> None:
    real = {os.path.realpath(path) for path in photos.paths}
    shared = [
        n
        for n, p in zip(validation.names, validation.paths, strict=True)
        if os.path.realpath(p) in real
    ]
    if not shared:
        trained = {f"train/{n}": p for n, p in zip(photos.names, photos.paths, strict=True)}
        held_out = {f"val/{n}": p for n, p in zip(validation.names, validation.paths, strict=True)}
        pairs = same_photos(trained | held_out, photos.cache).items()
        shared = [
            f"{name.removeprefix('val/')} (the same as {original.removeprefix('train/')})"
            for name, original in pairs
            if name.startswith("val/") and original.startswith("train/")
        ]
    if shared:
        raise InputError(
            f"--val {validation.source} has {counted(len(shared), 'photo')} that the run also "
            f"trains on, such as {shared[0]}; give folders without common photos, or "
            "leave --val out"
        )


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).lower() if isinstance(error, OSError) else text


def _listing(bad: Sequence[BadFile], most: int = _NAMED) -> str:
    text = first_of([f"{file.name} ({file.reason})" for file in bad], most)
    return printable(text)
