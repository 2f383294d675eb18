"""Draws pictures/: images of several kinds, shrunk by four and enlarged again; infrared scenes.

    python docs/figures/pictures.py

The weights saw none of these in training, except for the rocket. Terms: china.jpg is by
danielbuechele (CC BY 2.0), grace_hopper.jpg and rocket.jpg are in the public domain, the drawing,
the text and the infrared scenes are drawn here.
"""

import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib import cbook
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_image

from jaxsr import restore
from jaxsr.data.scenes import scene
from jaxsr.ops import resize

FOLDER = Path(__file__).parent / "pictures"
SIDE = 224
SCENES = (2, 6, 22)
RULE = {"method": "bicubic", "convention": "matlab"}


def drawing(kind: str) -> np.ndarray:
    """Lines, or lines of text, in black on white, (448, 448, 3), uint8."""
    figure = Figure(figsize=(4.48, 4.48), dpi=100, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    if kind == "text":
        words = "The quick brown fox jumps over the lazy dog. 0123456789 (a + b)² = a² + 2ab + b²"
        for row, size in enumerate((9, 10, 11, 12, 14, 16, 20, 24)):
            axes.text(0.02, 0.93 - 0.125 * row, words, fontsize=size)
    else:
        angle = np.linspace(0, 2 * np.pi, 400)
        for turn in range(9):
            radius = 0.42 * (1 - 0.05 * turn) * (1 + 0.12 * np.cos(5 * angle + 0.5 * turn))
            x, y = 0.5 + radius * np.cos(angle), 0.5 + radius * np.sin(angle)
            axes.plot(x, y, color="black", linewidth=0.5 + 0.35 * turn)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def truths() -> Iterator[tuple[str, str, np.ndarray, tuple[int, int], int]]:
    """Name, title, image, the crop's corner, and the JPEG quality of the small image (0: none)."""
    portrait = np.asarray(Image.open(cbook.get_sample_data("grace_hopper.jpg")))
    yield "jpeg", "from JPEG 60", load_sample_image("china.jpg"), (150, 280), 60
    yield "face", "portrait", portrait, (70, 130), 0
    yield "night", "rocket at dusk", data.rocket(), (190, 200), 0
    yield "drawing", "drawing", drawing("lines"), (40, 40), 0
    yield "text", "text", drawing("text"), (80, 0), 0


def shrunk(truth: np.ndarray, quality: int) -> np.ndarray:
    small = np.asarray(resize(truth, (truth.shape[0] // 4, truth.shape[1] // 4), **RULE))
    if not quality:
        return small
    file = io.BytesIO()
    Image.fromarray(small).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def compare(name: str, title: str, truth: np.ndarray, corner: tuple[int, int], jpeg: int) -> None:
    """Bicubic, the shipped weights, and the original, side by side."""
    truth = truth[: truth.shape[0] // 4 * 4, : truth.shape[1] // 4 * 4]
    small = shrunk(truth, jpeg)
    images = {
        f"{title}: bicubic": np.asarray(resize(small, truth.shape[:2], **RULE)),
        "jaxsr.restore": np.asarray(restore(small, "photo" if jpeg else "clean")),
        "original": truth,
    }
    top, left = corner
    _draw(name, {each: x[top : top + SIDE, left : left + SIDE] for each, x in images.items()})


def infrared() -> None:
    """Three drawn scenes with the targets that `jaxsr detect` marks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in SCENES:
            Image.fromarray(scene(4242, number)[0]).save(folder / f"{number}.png")
        command = [sys.executable, "-m", "jaxsr.detect", name, "--out", str(folder / "out")]
        subprocess.run(command, check=True)
        files = [folder / "out" / "overlays" / f"{number}.png" for number in SCENES]
        _draw("infrared", {f"scene {file.stem}": np.asarray(Image.open(file)) for file in files})


def _draw(name: str, images: dict[str, np.ndarray]) -> None:
    figure = Figure(figsize=(9.6, 3.5), dpi=100)
    for column, (title, image) in enumerate(images.items()):
        axes = figure.add_axes((column / 3 + 0.004, 0.0, 1 / 3 - 0.008, 0.91))
        axes.imshow(image, interpolation="nearest")
        axes.axis("off")
        axes.set_title(title, fontsize=12)
    FOLDER.mkdir(exist_ok=True)
    FigureCanvasAgg(figure).print_jpg(FOLDER / f"{name}.jpg", pil_kwargs={"quality": 92})


def main() -> None:
    for case in truths():
        compare(*case)
    infrared()


if __name__ == "__main__":
    main()
