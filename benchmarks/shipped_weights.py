"""Gain of the shipped enlarger over bicubic, on photos outside its training set.

The photos are those that the recipe in `jaxsr/weights/README.md` holds out of the folder, and those
of the wheels. Each is cut to a multiple of four, shrunk as MATLAB's imresize does,
rounded to 8 bits and enlarged again. PSNR and SSIM are scikit-image's, on MATLAB's Y of 8-bit
pictures, 4 pixels cut from each border.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks._results import Report, ReportOptions, Row, run_benchmark


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the measurement."""

    photos: Path | None = None
    """Folder of the Kodak photos, 01.png to 24.png. Default: only those of the wheels."""
    weights: Path | None = None
    """Another enlarger's weights, or a run folder. Default: what comes with jaxsr."""
    ensemble: bool = False
    """Average over the eight flips and turns."""


def luma(picture: np.ndarray) -> np.ndarray:
    return picture[4:-4, 4:-4] @ np.array([65.481, 128.553, 24.966]) / 255 + 16


def resized(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    from jaxsr.ops import resize

    return np.asarray(resize(picture, size, method="bicubic", antialias=True, convention="matlab"))


def measure(options: Options) -> None:
    """Measures, prints a table, and writes the report."""
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    from jaxsr import restore
    from jaxsr.data.photos import open_training_photos
    from jaxsr.training.span import RESTORE

    report = Report("shipped_weights", options)
    folders = [options.photos, None] if options.photos else [None]
    rows = []
    for folder in folders:
        held_out = open_training_photos(folder, None, crop=1, held_out=RESTORE.held_out)[1]
        for index, name in enumerate(held_out.names):
            picture = held_out.read(index)
            height, width = (n // 4 * 4 for n in picture.shape[:2])
            truth = picture[:height, :width]
            small = resized(truth, (height // 4, width // 4))
            bicubic = resized(small, (height, width))
            weights = options.weights and str(options.weights)
            ours = np.asarray(restore(small, weights, ensemble=options.ensemble))
            row: Row = {"photo": str(name), "folder": "photos" if folder else "wheels"}
            for kind, image in (("bicubic", bicubic), ("ours", ours)):
                pair = luma(truth), luma(image)
                row[f"psnr_{kind}"] = peak_signal_noise_ratio(*pair, data_range=255)
                row[f"ssim_{kind}"] = float(structural_similarity(*pair, data_range=255))  # pyright: ignore[reportArgumentType]
            row["gain_db"] = row["psnr_ours"] - row["psnr_bicubic"]
            rows.append(row)
            report.add(row)
            print(f"{row['photo']:<16}{row['psnr_bicubic']:8.2f}{row['psnr_ours']:8.2f}"
                  f"{row['gain_db']:8.2f}", flush=True)  # fmt: skip
    means = {"all": float(np.mean([row["gain_db"] for row in rows]))}
    for where in {row["folder"] for row in rows}:
        means[where] = float(np.mean([row["gain_db"] for row in rows if row["folder"] == where]))
    print("mean gain, dB: " + ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()))
    report.write(mean_gain_db=means)


if __name__ == "__main__":
    run_benchmark(measure, Options)
