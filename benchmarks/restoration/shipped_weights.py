"""Gain of the shipped enlargers over bicubic, on photos outside their training set, also as JPEG.

The photos are those that the recipe in `jaxsr/weights/README.md` holds out of the folder, and those
of the wheels. Each is cut to a multiple of the scale, shrunk as MATLAB's imresize does, rounded to
8 bits, saved as JPEG by Pillow or left as it is, and enlarged again. PSNR and SSIM are
scikit-image's, on MATLAB's Y of 8-bit pictures, 4 pixels cut from each border; LPIPS is AlexNet's,
where its weights are installed. The processor time is that of a second call, with the programs of
the first.
"""

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.harness.report import Report, ReportOptions, Row, run_benchmark


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the measurement."""

    photos: Path | None = None
    """Folder of the Kodak photos, 01.png to 24.png. Default: only those of the wheels."""
    models: tuple[str, ...] = ("clean", "photo", "clean_x2", "photo_x2")
    """Enlargers: words or files that `restore --model` takes."""
    jpeg: tuple[int, ...] = (0, 90, 60, 30)
    """Qualities of the small pictures; 0 leaves them as they are."""


def luma(picture: np.ndarray) -> np.ndarray:
    return picture[4:-4, 4:-4] @ np.array([65.481, 128.553, 24.966]) / 255 + 16


def resized(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    from jaxsr.ops import resize

    return np.asarray(resize(picture, size, method="bicubic", antialias=True, convention="matlab"))


def as_jpeg(picture: np.ndarray, quality: int) -> np.ndarray:
    if not quality:
        return picture
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def judge(
    image: np.ndarray, truth: np.ndarray, lpips: Callable[[np.ndarray, np.ndarray], float] | None
) -> dict[str, float]:
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    pair = luma(truth), luma(image)
    figures = {
        "psnr": float(peak_signal_noise_ratio(*pair, data_range=255)),
        "ssim": float(structural_similarity(*pair, data_range=255)),  # pyright: ignore[reportArgumentType]
    }
    return figures | ({"lpips": lpips(image, truth)} if lpips else {})


def measure(options: Options) -> None:
    """Measures, prints a table, and writes the report."""
    from jaxsr import restore
    from jaxsr.data.photos import open_training_photos
    from jaxsr.metrics.perceptual import lpips_if_installed
    from jaxsr.restoration.models import find_model
    from jaxsr.training.presets.span import RESTORE

    report = Report("shipped_weights", options)
    lpips = lpips_if_installed()
    pictures: dict[tuple[str, str], np.ndarray] = {}
    for folder in [options.photos, None] if options.photos else [None]:
        held_out = open_training_photos(folder, None, crop=1, held_out=RESTORE.held_out)[1]
        for index, name in enumerate(held_out.names):
            pictures["photos" if folder else "wheels", str(name)] = held_out.read(index)
    rows: list[Row] = []
    scales = {model: find_model(model).scale for model in options.models}
    cases = [(scale, quality) for scale in sorted({*scales.values()}) for quality in options.jpeg]
    for (folder, name), picture in pictures.items():
        for scale, quality in cases:
            height, width = (n // scale * scale for n in picture.shape[:2])
            truth = picture[:height, :width]
            low = as_jpeg(resized(truth, (height // scale, width // scale)), quality)
            images = {"bicubic": resized(low, (height, width))}
            times: dict[str, float] = {}
            for model in (model for model in options.models if scales[model] == scale):
                for _ in range(1 if quality else 2):
                    began = time.process_time()
                    restored = restore(low, model)
                    images[model] = np.asarray(restored)
                    times[model] = (time.process_time() - began) / low[..., 0].size * 1e6
            for contender, image in images.items():
                row: Row = {"photo": name, "folder": folder, "scale": scale, "jpeg": quality}
                row |= {"model": contender, **judge(image, truth, lpips)}
                if contender in times and not quality:
                    row["processor_s_per_mp"] = times[contender]
                rows.append(row)
                report.add(row)
        print(f"{name} measured", flush=True)
    for scale, quality in cases:
        print(f"×{scale}, JPEG {quality}" if quality else f"×{scale}, no JPEG")
        for contender in ("bicubic", *(m for m in options.models if scales[m] == scale)):
            key = (scale, quality, contender)
            same = [r for r in rows if (r["scale"], r["jpeg"], r["model"]) == key]
            means = {k: np.mean([r[k] for r in same]) for k in same[0] if k in _FIGURES}
            print(f"  {contender:<40}" + "".join(f"{k} {v:8.4f}  " for k, v in means.items()))


_FIGURES = ("psnr", "ssim", "lpips")


if __name__ == "__main__":
    run_benchmark(measure, Options)
