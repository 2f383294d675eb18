"""Infrared images with target masks: found in the layouts people have, checked before training.

An image is `uint8 (height, width, 3)`, as `decode.py` says; its mask is `uint8 (height, width)`, 0
or 1, as `masks.py` says. A data set is a folder with

- images in `images`, `image`, `imgs` or `img`; masks in `masks`, `mask`, `labels`, `label` or `gt`,
  under the image's name or with `_pixels0`, `_mask` or `_gt` after it;
- lists of names, one a line, with or without an ending: `trainval.txt` or `train.txt`, and
  `test.txt` (`val.txt` where there is no `test.txt`), or `train_ANYTHING.txt` and
  `test_ANYTHING.txt`; next to the folders or in one folder of their own (`img_idx`, `idx_427`, …).

Validation images come from the training list, by the hash of each name, unless a list is given;
never from the test list.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from jaxsr.data.decode import (
    PICTURE_ENDINGS,
    decode_rgb,
    few_levels_note,
    has_few_levels,
    orientation_of,
)
from jaxsr.data.held_out import is_held_out
from jaxsr.data.host_cache import PixelCache
from jaxsr.data.masks import Mask, read_mask
from jaxsr.data.picture_file import ChangedFileError, UnreadablePicture
from jaxsr.data.processors import available_cpus
from jaxsr.data.split_lists import LISTS, SplitName, find_list, names_if_any, read_entries
from jaxsr.errors import InputError, MissingFileError, counted, first_of

IMAGE_FOLDERS = ("images", "image", "imgs", "img")
MASK_FOLDERS = ("masks", "mask", "labels", "label", "gt")
"""Names of folders, or their endings, in any case: IRSTD1k_Img and IRSTD1k_Label."""
MASK_SUFFIXES = ("", "_pixels0", "_mask", "_gt")

_NAMED = 12  # problems that a message names before it says "and n more"
_log = logging.getLogger(__name__)

Pair = tuple[UInt8[np.ndarray, "h w 3"], UInt8[np.ndarray, "h w"]]


@dataclass(frozen=True, eq=False)
class Infrared:
    """Checked images and masks of one split, in the order of its list."""

    source: str
    """Where they came from, for messages and reports."""
    split: str
    """The list they were named in, e.g. `trainval.txt`, and the part that was used."""
    names: tuple[str, ...]
    sizes: np.ndarray
    """int32 (n, 2): height and width of each."""
    target_pixels: np.ndarray
    """int64 (n): target pixels of each mask."""
    gray: bool
    """Whether all images have three equal channels, so that one is enough to keep."""
    load: Callable[[str], Pair]
    """Image and mask of a name; safe from several threads."""

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> Pair:
        """Image and mask number `index`.

        Raises:
          ChangedFileError: a file changed or went away after it was checked.
        """
        name = self.names[index]
        try:
            image, mask = self.load(name)
        except (OSError, UnreadablePicture) as error:
            raise ChangedFileError(
                f"{name} of {self.source} was readable when this run checked it and no longer is: "
                f"{error}; restore the file and resume"
            ) from error
        if image.shape[:2] != tuple(self.sizes[index]) or mask.shape != image.shape[:2]:
            raise ChangedFileError(
                f"{name} of {self.source} has another size than when this run checked it; "
                "restore the file and resume"
            )
        return image, mask

    @property
    def nbytes(self) -> int:
        """Bytes of all images and masks decoded."""
        return 4 * int(np.prod(self.sizes, axis=1, dtype=np.int64).sum())

    @property
    def list_hash(self) -> str:
        """SHA-256 of the sorted names, a line each: the same for the same images in any order."""
        lines = "".join(f"{name}\n" for name in sorted(self.names))
        return hashlib.sha256(os.fsencode(lines)).hexdigest()

    def gray_statistics(self) -> tuple[float, float]:
        """Mean and standard deviation of all pixels' luma, in levels 0…255."""
        total = squares = count = 0
        for index in range(len(self)):
            gray = to_gray(self.read(index)[0]).astype(np.int64)
            total, squares = total + int(gray.sum()), squares + int((gray * gray).sum())
            count += gray.size
        mean = total / count
        return mean, max(squares / count - mean**2, 0.0) ** 0.5

    def subset(self, indices: Sequence[int], split: str) -> "Infrared":
        """The images at `indices`, in that order."""
        picked = list(indices)
        return replace(
            self,
            split=split,
            names=tuple(self.names[i] for i in picked),
            sizes=self.sizes[picked],
            target_pixels=self.target_pixels[picked],
        )

    def held_out(self, fraction: float) -> "tuple[Infrared, Infrared]":
        """Divides the split into training and validation images, by the names' hashes.

        Raises:
          ValueError: the fraction is out of range, or leaves nothing on one side.
        """
        if not 0 < fraction < 1:
            raise InputError(
                f"the validation split must be a fraction between 0 and 1, got {fraction}; "
                "to validate on a list of your own, give its file"
            )
        in_validation = is_held_out(self.names, fraction)
        if in_validation.all():
            raise InputError(
                f"{self.source} ({self.split}) has {len(self)} image(s), too few to hold out "
                f"{fraction} for validation; add images, or give a validation list"
            )
        return (
            self.subset(np.flatnonzero(~in_validation).tolist(), f"{self.split}, less validation"),
            self.subset(
                np.flatnonzero(in_validation).tolist(), f"{self.split}, {fraction:g} by name hash"
            ),
        )


def open_training(
    folder: Path,
    *,
    validation: float | Path = 0.1,
    lists: str | None = None,
    mask_threshold: int | None = None,
    cache: PixelCache | None = None,
) -> tuple[Infrared, Infrared]:
    """The images to train on and those to validate on, all checked.

    Args:
      folder: the data set.
      validation: a fraction of the training list to hold out, or the file of a list to validate on
        (looked for among the data set's lists if there is no such path).
      lists: folder of the split lists within the data set, where it has several.
      mask_threshold: see `read_mask`.
      cache: keeps decoded images. Default: one of a quarter of the free memory.

    Raises:
      FileNotFoundError, ValueError: as `open_split`, or the validation list shares images with the
        training list or the test list.
    """
    options = {"lists": lists, "mask_threshold": mask_threshold}
    cache = cache if cache is not None else PixelCache(None)
    train = open_split(folder, "train", cache=cache, **options)
    tested = names_if_any(folder, "test", lists)
    leaked = sorted(set(train.names) & tested)
    if leaked:
        _log.warning(
            "the training list and the test list of %s share %s, such as %s: test figures will "
            "flatter",
            folder, counted(len(leaked), "image"), leaked[0],
        )  # fmt: skip
    if not isinstance(validation, Path):
        train, validation_images = train.held_out(validation)
        _check_targets(train, mask_threshold)
        return train, validation_images
    _check_targets(train, mask_threshold)
    validation_images = open_split(folder, validation, cache=cache, **options)
    others = [(set(train.names), "the training list")]
    if not _is_list_of("test", folder, validation, lists):  # as val.txt is where there is no other
        others.append((tested, "the test list"))
    for other, what in others:
        shared = sorted(set(validation_images.names) & other)
        if shared:
            raise InputError(
                f"the validation list {validation} shares {counted(len(shared), 'image')} with "
                f"{what}, such as {shared[0]}; give a list apart from both, or a fraction to "
                "hold out"
            )
    return train, validation_images


def _is_list_of(split: SplitName, folder: Path, file: Path, lists: str | None) -> bool:
    try:
        return find_list(folder, split, lists).samefile(find_list(folder, file, lists))
    except (FileNotFoundError, ValueError):
        return False


def open_split(
    folder: Path,
    split: SplitName | Path,
    *,
    lists: str | None = None,
    mask_threshold: int | None = None,
    cache: PixelCache | None = None,
    threads: int | None = None,
) -> Infrared:
    """Finds a split's images and masks and reads each once, before training or testing begins.

    Args:
      folder: the data set.
      split: "train", "test", or the file of a list.
      lists: folder of the split lists within the data set, where it has several.
      mask_threshold: see `read_mask`.
      cache: keeps decoded images. Default: one of a quarter of the free memory.
      threads: files read at once. Default: one per CPU.

    Raises:
      FileNotFoundError: no such folder, no folder of images or masks in it, or no list.
      ValueError: an empty list, several places with lists, or images that cannot be used: every
        problem is listed.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(
            f"{folder} is a file; an infrared data set is a folder with images/NAME.png and "
            "masks/NAME.png: unpack an archive"
        )
    if not folder.is_dir():
        raise MissingFileError(f"no folder {folder}; give the folder of an infrared data set")
    root = _root(folder, split)
    images, masks = _subfolder(root, IMAGE_FOLDERS), _subfolder(root, MASK_FOLDERS)
    image_files = _index(images, ("",))
    mask_files = _index(masks, MASK_SUFFIXES, full_names=image_files)
    try:
        list_file = find_list(folder, split, lists)
        listed = read_entries(list_file)
    except MissingFileError:
        # As IRSTD-1k is downloaded. Any list in it would be of images that are not trained on.
        has_lists = any(folder.glob("*.txt")) or any(folder.glob("*/*.txt"))
        if lists is not None or has_lists or (root == folder and split != "train"):
            raise
        list_file, listed = root, dict.fromkeys(sorted(image_files))
        _log.warning("no list in %s: all %d images of %s are taken", folder, len(listed), images)
        if not listed:
            raise InputError(f"{images} holds no images; give the folder of a data set") from None
    names = list(listed)
    cache = cache if cache is not None else PixelCache(None)
    problems: dict[str, str] = {}
    for name in names:
        absent = [w for w, f in (("image", image_files), ("mask", mask_files)) if name not in f]
        if absent:
            problems[name] = f"no {' and no '.join(absent)}"
    soft: set[str] = set()
    faint: set[str] = set()

    def load(name: str) -> Pair:
        pixels = cache.get((str(folder), name))
        if pixels is None:
            rgb, file = _read_image(image_files[name], listed[name])
            if has_few_levels(file, rgb):
                faint.add(name)
            mask = _read_mask(mask_files[name], mask_threshold)
            if mask.is_soft:
                soft.add(name)
            if rgb.shape[:2] != mask.pixels.shape:
                raise UnreadablePicture(f"image {_px(rgb.shape)}, mask {_px(mask.pixels.shape)}")
            if (orientation := orientation_of(file)) != 1 or mask.orientation != 1:
                raise UnreadablePicture(
                    f"EXIF turns the image (orientation {orientation}) or its mask "
                    f"(orientation {mask.orientation}); save both turned, without the tag"
                )
            pixels = cache.keep((str(folder), name), np.dstack([rgb, mask.pixels]))
        return pixels[..., :3], pixels[..., 3]

    def examine(name: str) -> tuple[tuple[int, int], int, bool] | str:
        try:
            image, mask = load(name)
        except (OSError, UnreadablePicture) as error:
            return " ".join(str(error).split())
        gray = bool((image == image[..., :1]).all())
        return image.shape[:2], int(mask.sum()), gray

    present = [name for name in names if name not in problems]
    with ThreadPoolExecutor(threads or available_cpus(), "check-infrared") as pool:
        examined = dict(zip(present, pool.map(examine, present), strict=True))
    problems |= {name: result for name, result in examined.items() if isinstance(result, str)}
    if problems:
        gray_masks = any("gray values" in reason for reason in problems.values())
        raise InputError(
            f"{len(problems)} of the {len(names)} images that {list_file} names cannot be used: "
            f"{_listing(problems, names)}; mend the files or take the names out of the list"
            + (", or binarise gray masks with --mask-threshold 127" if gray_masks else "")
        )
    if soft:
        _log.warning(
            "%d of the %d masks of %s have gray values at their edges, %s among them: those above "
            "half of white are targets; --mask-threshold sets another limit",
            len(soft), len(names), folder, min(soft),
        )  # fmt: skip
    if faint:
        shown = f"{len(faint)} of the {len(names)} images of {folder}, such as {min(faint)}"
        _log.warning("%s", few_levels_note(shown))
    good = [examined[name] for name in names]
    images_of_split = Infrared(
        source=str(folder),
        split=list_file.relative_to(folder).as_posix()
        if list_file.is_relative_to(folder)
        else str(list_file),
        names=tuple(names),
        sizes=np.array([size for size, _, _ in good], np.int32),
        target_pixels=np.array([pixels for _, pixels, _ in good], np.int64),
        gray=all(gray for _, _, gray in good),
        load=load,
    )
    _check_targets(images_of_split, mask_threshold, training=False)
    return images_of_split


def _check_targets(images: Infrared, threshold: int | None, *, training: bool = True) -> None:
    """Refuses masks that no network can learn from.

    Raises:
      InputError: they have no target pixel, if for training, or hardly any other.
    """
    targets = int(images.target_pixels.sum())
    share = targets / int(images.sizes.prod(axis=1, dtype=np.int64).sum())
    what = f"{images.source} ({images.split})"
    if targets == 0 and training:
        limit = f" above mask_threshold={threshold}" if threshold is not None else ""
        raise InputError(
            f"no mask of {what} has a target pixel{limit}; look whether the masks are the right "
            "ones"
        )
    if share > _MOST_TARGETS:
        raise InputError(
            f"{share:.0%} of the pixels in the masks of {what} are targets; where white is their "
            "background, invert them"
        )


_MOST_TARGETS = 0.9


def _read_image(
    files: Sequence[Path], ending: str | None
) -> tuple[UInt8[np.ndarray, "h w 3"], Path]:
    """The image that a list means, and its file."""
    named = [file for file in files if file.suffix.lower() == ending] or files
    first = decode_rgb(named[0])
    for other in named[1:]:
        if not np.array_equal(decode_rgb(other), first):
            raise UnreadablePicture(
                f"{named[0].name} and {other.name} are different images; keep one, or name its "
                "ending in the list"
            )
    return first, named[0]


def _read_mask(files: Sequence[Path], threshold: int | None) -> Mask:
    first = read_mask(files[0], threshold=threshold)
    for other in files[1:]:
        if not np.array_equal(read_mask(other, threshold=threshold).pixels, first.pixels):
            raise UnreadablePicture(
                f"{files[0].name} and {other.name} are different masks; keep one"
            )
    return first


def _root(folder: Path, split: SplitName | Path) -> Path:
    """The folder with images and masks: the data set's, or one of the split's own in it."""
    if isinstance(split, Path) or _find_subfolder(folder, IMAGE_FOLDERS):
        return folder
    for path in sorted(folder.iterdir()):
        is_split = path.is_dir() and path.name.lower() in LISTS[split]
        if is_split and _find_subfolder(path, IMAGE_FOLDERS):
            return path
    return folder


def to_gray(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w"]:
    """Luma (BT.601) in Pillow's fixed point; a gray image's own values."""
    red, green, blue = (image[..., k].astype(np.uint32) for k in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)


def _find_subfolder(folder: Path, names: Iterable[str]) -> Path | None:
    """The folder of one of these names, in any case, or the only one whose name ends in one."""
    folders = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    same = [folders[name] for name in names if name in folders]
    if len(same) > 1:
        listed = " and ".join(path.name for path in same)
        _log.warning("%s has %s; %s is taken", folder, listed, same[0].name)
    if same:
        return same[0]
    ending = [p for name, p in folders.items() if name.endswith(tuple(f"_{n}" for n in names))]
    return ending[0] if len(ending) == 1 else None


def _subfolder(folder: Path, names: Sequence[str]) -> Path:
    if (subfolder := _find_subfolder(folder, names)) is not None:
        return subfolder
    raise MissingFileError(
        f"no folder {', '.join(names)} in {folder}; a data set has images/NAME.png and "
        "masks/NAME.png next to its lists"
    )


def _index(
    folder: Path, suffixes: Sequence[str], *, full_names: Container[str] = ()
) -> dict[str, list[Path]]:
    """All image files by name, those with a suffix behind the plain ones.

    Args:
      folder: of the files.
      suffixes: of names, "" for none.
      full_names: names that end in a suffix and are taken as they are.
    """
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    files = sorted(path for path in shown if path.suffix.lower() in PICTURE_ENDINGS)
    index: dict[str, list[Path]] = {}
    for suffix in suffixes:
        for file in files:
            if file.stem.endswith(suffix) and not (suffix and file.stem in full_names):
                index.setdefault(file.stem.removesuffix(suffix), []).append(file)
    return index


def _px(shape: Sequence[int]) -> str:
    return f"{shape[1]}×{shape[0]} px"


def _listing(problems: dict[str, str], order: Sequence[str]) -> str:
    return first_of([f"{n} ({problems[n]})" for n in order if n in problems], _NAMED)
