"""Clips of videos to train on: frames that follow each other, of folders with an image a frame.

`clip0/000.png`, `clip0/001.png`, … as REDS and Vimeo-90K have them; the folders may lie in tar
files. A video becomes such a folder by `ffmpeg -i a.mp4 a/%06d.png`.
"""

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from jaxsr.data.photos import Photos, open_photos
from jaxsr.errors import InputError


class Clips:
    """Every run of `frames` frames, as `{"clip": (t, h, w, 3)}` of uint8 RGB levels, 0 to 255.

        class Denoising(jaxsr.Task):
            def train_data(self):
                return Clips(self.config.data, frames=5, crop=64)

    A clip's frames are those of one folder, in the order of their names, in which numbers count by
    their value: `f9.png` comes before `f10.png`. A crop lies at the same
    random place in all frames of an item; it is drawn from NumPy's generator, which the task seeds
    for each item.
    """

    def __init__(
        self, folder: Path, *, frames: int, crop: int | None = None, stride: int = 1
    ) -> None:
        """Finds and checks every frame.

        Args:
          folder: with a folder for each clip, at any depth.
          frames: of an item.
          crop: side of a square of each frame in pixels. Default: whole frames, which must then be
            equally large in all clips.
          stride: frames between the beginnings of an item and the next one.

        Raises:
          FileNotFoundError: there is no such folder.
          ValueError: a frame is damaged or too small, frames of a clip differ in size, or no clip
            is long enough.
        """
        if frames < 1 or stride < 1:
            raise InputError(f"frames and stride must be at least 1, got {frames} and {stride}")
        self.frames, self.crop = frames, crop
        self.photos: Photos = open_photos(folder, crop=1 if crop is None else crop, check="header")
        by_clip: dict[str, list[int]] = defaultdict(list)
        for index, name in enumerate(self.photos.names):
            by_clip[name.rpartition("/")[0]].append(index)
        for indices in by_clip.values():
            indices.sort(key=lambda index: _with_numbers(self.photos.names[index]))
        sizes = self.photos.sizes
        for indices in by_clip.values():
            alike = indices if crop else range(len(sizes))
            odd = next((i for i in alike if tuple(sizes[i]) != tuple(sizes[indices[0]])), None)
            if odd is not None:
                raise InputError(
                    f"{self.photos.names[odd]} and {self.photos.names[indices[0]]} differ in size; "
                    "frames of a clip are equally large"
                    + ("" if crop else ", and of all clips where no crop is given")
                )
        self.items = [
            indices[first : first + frames]
            for indices in by_clip.values()
            for first in range(0, len(indices) - frames + 1, stride)
        ]
        if not self.items:
            longest = max(map(len, by_clip.values()))
            raise InputError(
                f"no clip of {folder} has frames={frames}; the longest has {longest}; give fewer "
                "frames"
            )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, UInt8[np.ndarray, "t h w 3"]]:
        indices = self.items[index]
        if self.crop is None:
            return {"clip": np.stack([self.photos.read(i) for i in indices])}
        height, width = map(int, self.photos.sizes[indices[0]])
        top, left = (np.random.randint(0, side - self.crop + 1) for side in (height, width))
        crops = [self.photos.read_crop(i, top=top, left=left, side=self.crop) for i in indices]
        return {"clip": np.stack(crops)}


def _with_numbers(name: str) -> list[tuple[int, str]]:
    """A name's parts, to sort by: runs of digits by their value, all else as it is."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), part) if k % 2 else (0, part) for k, part in enumerate(parts)]
