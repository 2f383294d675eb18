"""Lists of the names of a split's images, next to a data set's folders or in one of their own."""

from pathlib import Path
from typing import Literal

from jaxsr.data.decode import PICTURE_ENDINGS
from jaxsr.errors import InputError, MissingFileError
from jaxsr.interop.bounded_read import read_bounded

LISTS = {"train": ("trainval", "train"), "test": ("test", "val")}
"""List files of each split, the first that exists being taken."""

SplitName = Literal["train", "test"]


def find_list(folder: Path, split: SplitName | Path, lists: str | None = None) -> Path:
    """The list file of a split.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: there are several, and none is named.
    """
    if isinstance(split, Path) and split.is_file():
        return split
    if lists is not None and not (folder / lists).is_dir():
        raise MissingFileError(f"no folder {lists} with split lists in {folder}")
    below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    places = [folder, *below] if lists is None else [folder / lists]
    stems = LISTS[split] if not isinstance(split, Path) else (split.stem,)
    for stem in stems:
        for where in ([places[0]], places[1:]):
            files = [file for place in where for file in _lists_named(place, stem)]
            if len(files) > 1:
                listed = ", ".join(file.relative_to(folder).as_posix() for file in files)
                raise InputError(
                    f"{folder} has several lists for {stem} ({listed}); choose the folder they are "
                    "in with --lists, or keep one of them"
                )
            if files:
                return files[0]
    list_names = " or ".join(f"{stem}.txt" for stem in stems)
    raise MissingFileError(
        f"no {list_names} in {folder}{f'/{lists}' if lists else ' or one folder below'}; write the "
        "names of the split's images into it, one a line"
    )


def read_list(file: Path) -> list[str]:
    """Names in a list file, see `read_entries`."""
    return list(read_entries(file))


def read_entries(file: Path) -> dict[str, str | None]:
    """Names in a list file, without folders and endings, each once, and their endings.

    Raises:
      ValueError: the list is empty, not text, or has a name with two endings or in two folders.
    """
    try:
        lines = [line.strip() for line in read_bounded(file).decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not a text file of names in UTF-8") from error
    names: dict[str, str | None] = {}
    folders: dict[str, str] = {}
    for line in filter(None, lines):
        folder, _, name = line.replace("\\", "/").rpartition("/")
        stem = _stem(name)
        ending = None if stem == name else Path(name).suffix.lower()
        if names.setdefault(stem, ending) != ending:
            raise InputError(
                f"{file} names {stem} with the endings {names[stem]} and {ending}; a name stands "
                "for one image"
            )
        if folders.setdefault(stem, folder) != folder:
            raise InputError(
                f"{file} names {stem} in two folders, {folders[stem]!r:.100} and {folder!r:.100}; "
                "images are found by their names alone: give each its own"
            )
    if not names:
        raise InputError(f"{file} is empty; write the names of the split's images, one a line")
    return names


def names_if_any(folder: Path, split: SplitName, lists: str | None) -> set[str]:
    """Names in the list of a split; none where there is no list, as training needs no test list."""
    try:
        return set(read_list(find_list(folder, split, lists)))
    except (FileNotFoundError, ValueError):
        return set()


def _lists_named(place: Path, stem: str) -> list[Path]:
    """`STEM.txt`, or else every `STEM_ANYTHING.txt`, in one folder."""
    exact = place / f"{stem}.txt"
    named = (path for path in place.glob(f"{stem}_*.txt") if path.is_file())
    return [exact] if exact.is_file() else sorted(named)


def _stem(name: str) -> str:
    path = Path(name)
    return path.stem if path.suffix.lower() in PICTURE_ENDINGS else name
