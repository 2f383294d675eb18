"""Which crop is which sample: the position in the data is the sample's number, and nothing else.

Sample `s` of a run (step · global batch + row) falls into epoch `s // epoch_length`. Each epoch is
a fresh permutation in which every photo stands `crops_per_photo` times; a batch that reaches the
end of one goes on in the next, so nothing is dropped and a batch may be larger than an epoch. The
crop's corner is uniform over all places where the crop fits.

Everything comes from Philox's raw words, keyed by the seed and counted by the sample's number:
hosts, threads and restarts cannot change it, and neither can a release of NumPy, which promises
stable words but not stable `permutation` or `integers`.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int32, Int64

from jaxsr.errors import InputError

_CORNERS = 0  # second half of the Philox key: 0 draws corners, 1 + epoch draws that epoch's order


@dataclass(frozen=True, eq=False)
class CropOrder:
    """The order of crops that a seed makes of photos of given sizes."""

    sizes: np.ndarray
    """int (photos, 2): height and width of each photo."""
    crop: int
    """Side of the square crop in pixels."""
    seed: int
    """0 to 2**64 - 1."""
    crops_per_photo: int = 1
    """How often each photo stands in an epoch, each time with another corner."""

    def __post_init__(self) -> None:
        if not len(self.sizes):
            raise InputError("sizes must name at least one photo, got none")
        if self.crop < 1 or self.crop > np.min(self.sizes):
            raise InputError(
                f"crop must be between 1 and the photos' least side {np.min(self.sizes)} px, "
                f"got {self.crop}"
            )
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed must be between 0 and 2**64 - 1, got {self.seed}")
        if self.crops_per_photo < 1:
            raise InputError(f"crops_per_photo must be at least 1, got {self.crops_per_photo}")

    @property
    def epoch_length(self) -> int:
        """Samples in an epoch."""
        return len(self.sizes) * self.crops_per_photo

    def windows(self, first: int, count: int) -> Int32[np.ndarray, "count 3"]:
        """Photo, top row and left column of samples `first` to `first + count - 1`."""
        order = shuffled(first, count, length=self.epoch_length, seed=self.seed)
        photo = (order[:, 0] % len(self.sizes)).astype(np.int32)
        # One Philox block of four words per sample: a block's number is the sample's number.
        words = _philox(self.seed, _CORNERS, counter=first).random_raw(4 * count)
        places = self.sizes[photo] - self.crop + 1
        # The top 32 bits times the number of places: at worst 2**-32 · places from uniform.
        corner = (words.reshape(count, 4)[:, :2] >> 32) * places.astype(np.uint64) >> 32
        return np.concatenate([photo[:, None], corner.astype(np.int32)], axis=1)


def shuffled(first: int, count: int, *, length: int, seed: int) -> Int64[np.ndarray, "count 2"]:
    """Index and epoch of samples `first` to `first + count - 1`.

    Args:
      first, count: numbers of samples, counted over the whole run.
      length: items of an epoch; each is a permutation of them.
      seed: 0 to 2**64 - 1.
    """
    samples = np.empty((count, 2), np.int64)
    done = 0
    while done < count:
        epoch, start = divmod(first + done, length)
        part = _epoch_order(seed, epoch, length)[start : start + count - done]
        samples[done : done + len(part), 0] = part
        samples[done : done + len(part), 1] = epoch
        done += len(part)
    return samples


@lru_cache(maxsize=4)
def _epoch_order(seed: int, epoch: int, length: int) -> np.ndarray:
    return np.argsort(_philox(seed, 1 + epoch).random_raw(length), kind="stable")


def _philox(seed: int, stream: int, counter: int = 0) -> np.random.Philox:
    # As an array: from a list, NumPy makes a large key a rounded float.
    return np.random.Philox(key=np.array([seed, stream], np.uint64), counter=counter)
