"""What the enlarger that comes with jaxsr gains over bicubic on photos that it never saw.

    python benchmarks/shipped_weights.py --photos kodak/ [--ensemble] [--out FILE.json]

Held out are the photos that the recipe in `jaxsr/weights/README.md` holds out of the same folder,
and those of the wheels. Each is cut to a multiple of four, shrunk as MATLAB's imresize does,
rounded to 8 bits and enlarged again. PSNR and SSIM are scikit-image's, on MATLAB's Y of 8-bit
pictures, 4 pixels cut from each border.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _timing import surroundings

RESULTS = Path(__file__).parent / "results" / "shipped_weights.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    photos: Path | None = None
    """Folder of the Kodak photos, 01.png to 24.png. Default: only those of the wheels."""
    weights: Path | None = None
    """Another enlarger's weights, or a run folder. Default: what comes with jaxsr."""
    ensemble: bool = False
    """Average over the eight flips and turns."""
    out: Path = RESULTS
    """JSON for the figures."""


def luma(picture: np.ndarray) -> np.ndarray:
    return picture[4:-4, 4:-4] @ np.array([65.481, 128.553, 24.966]) / 255 + 16


def resized(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    from jaxsr.ops import resize

    return np.asarray(resize(picture, size, method="bicubic", antialias=True, convention="matlab"))


def main() -> None:
    """Measures, prints a table, and writes the JSON."""
    import tyro
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    from jaxsr import restore
    from jaxsr.data.photos import open_training_photos
    from jaxsr.training.span import RESTORE

    options = tyro.cli(Options, description=(__doc__ or "").splitlines()[0])
    folders = [options.photos, None] if options.photos else [None]
    rows = []
    for folder in folders:
        held = open_training_photos(folder, None, crop=1, held_out=RESTORE.held_out)[1]
        for index, name in enumerate(held.names):
            picture = held.read(index)
            height, width = (n // 4 * 4 for n in picture.shape[:2])
            truth = picture[:height, :width]
            small = resized(truth, (height // 4, width // 4))
            bicubic = resized(small, (height, width))
            weights = options.weights and str(options.weights)
            ours = np.asarray(restore(small, weights, ensemble=options.ensemble))
            where = "wheels" if folder is None else "photos"
            row: dict[str, Any] = {"photo": str(name), "folder": where}
            for kind, image in (("bicubic", bicubic), ("ours", ours)):
                pair = luma(truth), luma(image)
                row[f"psnr_{kind}"] = peak_signal_noise_ratio(*pair, data_range=255)
                row[f"ssim_{kind}"] = float(structural_similarity(*pair, data_range=255))  # pyright: ignore[reportArgumentType]
            row["gain_db"] = row["psnr_ours"] - row["psnr_bicubic"]
            rows.append(row)
            print(f"{row['photo']:<16}{row['psnr_bicubic']:8.2f}{row['psnr_ours']:8.2f}"
                  f"{row['gain_db']:8.2f}", flush=True)  # fmt: skip
    means = {"all": float(np.mean([row["gain_db"] for row in rows]))}
    for where in {row["folder"] for row in rows}:
        means[where] = float(np.mean([row["gain_db"] for row in rows if row["folder"] == where]))
    print("mean gain, dB: " + ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()))
    report = {
        "benchmark": "shipped_weights",
        "ensemble": options.ensemble,
        "weights": str(options.weights or "jaxsr's own"),
        **surroundings(),
        "mean_gain_db": means,
        "rows": rows,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
