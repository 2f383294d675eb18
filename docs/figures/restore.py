"""Draws restore.png: a held-out photo, shrunk by four and enlarged again.

    python docs/figures/restore.py

The photo is scikit-image's `chelsea` (CC0), which the shipped weights were not trained on.
"""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from skimage import data
from skimage.metrics import peak_signal_noise_ratio

from jaxsr import restore
from jaxsr.ops import resize, rgb_to_y

TOP, LEFT, SIDE = 40, 84, 160


def main() -> None:
    photo = data.chelsea()[:300, :448]
    height, width = photo.shape[:2]
    rule = {"method": "bicubic", "convention": "matlab"}
    small = np.asarray(resize(photo, (height // 4, width // 4), **rule))
    pictures = {
        "bicubic": np.asarray(resize(small, (height, width), **rule)),
        "jaxsr.restore": np.asarray(restore(small)),
        "original": photo,
    }
    figure = Figure(figsize=(9.6, 3.5))
    reference = np.round(np.asarray(rgb_to_y(photo)))
    for column, (name, picture) in enumerate(pictures.items()):
        axes = figure.add_axes((column / 3 + 0.004, 0.0, 1 / 3 - 0.008, 0.91))
        axes.imshow(picture[TOP : TOP + SIDE, LEFT : LEFT + SIDE], interpolation="nearest")
        axes.axis("off")
        title = name
        if picture is not photo:
            luma = np.round(np.asarray(rgb_to_y(picture)))
            crop = np.s_[4:-4, 4:-4]
            psnr = peak_signal_noise_ratio(reference[crop], luma[crop], data_range=255)
            title += f", {psnr:.2f} dB"
        axes.set_title(title, fontsize=12)
    figure.set_dpi(100)
    FigureCanvasAgg(figure).print_png(Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
