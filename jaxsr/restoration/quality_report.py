"""Compares restored images with their references: table, JSON and a contact sheet.

PSNR and SSIM are on Y of BT.601 in studio range (MATLAB's), rounded to levels, with as many border
pixels cut as the result is enlarged: the super-resolution papers' convention. LPIPS is AlexNet's,
on RGB, where its weights are installed. Images are compared upright, in 8 bits, transparency left
out.
"""

import glob
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from jaxsr.data.decode import claims_to_be_picture
from jaxsr.data.sources import Source
from jaxsr.errors import InputError, one_line, printable_text
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.atomic_write import atomic_path, atomic_write
from jaxsr.metrics.means import mean_figures
from jaxsr.metrics.perceptual import LPIPS_CONVENTION, lpips_if_installed
from jaxsr.restoration.batch import named_result
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.pictures import Picture, PictureError, read_picture, upright

_CELL = 256
"""Side of an image on the contact sheet, in pixels."""
_MOST_ON_SHEET = 24
RESULTS = ("figures.json", "figures.txt", "contact-sheet.png")
"""Files of a report."""


@dataclass(frozen=True, kw_only=True)
class ImageQuality:
    """One image's."""

    name: str
    model: str
    psnr: float
    """dB; infinite if the images are equal."""
    ssim: float
    bicubic_psnr: float | None
    """PSNR of the source enlarged bicubically (Pillow's), for comparison."""
    lpips: float | None


def write_report(
    config: RestoreConfig,
    sources: Sequence[Source],
    results: Mapping[Path, tuple[Path, RestorationModel]],
) -> bool:
    """Compares results with the truth, and writes and prints the figures.

    Args:
      config: of the command.
      sources: its files.
      results: the result of each source that has one, and the model that made it.

    Returns:
      Whether all sources but videos could be compared.

    Raises:
      ValueError: no result has a truth image of its name.
      OSError: the folder cannot be written.
    """
    assert config.truth is not None
    folder = report_folder(config)
    scale = max((model.scale for _, model in results.values()), default=1)
    border = max(1, round(config.outscale or scale)) if scale > 1 else 0
    rows, sheet, problems = [], [], []
    measure_lpips = lpips_if_installed()
    videos = {str(source.relative): "a video" for source in sources if source.is_video}
    for source in sources:
        if source.is_video:
            continue
        name, truth = str(source.relative), _find(config.truth, source.relative)
        try:
            if source.path not in results:
                raise InputError("it was not restored")
            if truth is None:
                raise InputError(f"{config.truth} has no image of its name")
            target, model = results[source.path]
            paths = (target, truth, source.path)
            result, expected, original = (_rgb(read_picture(path)) for path in paths)
            images = result, expected, original
            rows.append(_figures(name, model.name, images, border, measure_lpips))
        except (PictureError, ValueError, OSError) as error:
            problems.append((name, one_line(error)))
            continue
        if len(sheet) < _MOST_ON_SHEET:
            sheet.append((name, _cells(*images)))
    left_out = [*problems, *videos.items()]
    if not rows:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out[:3])
        raise InputError(
            f"no result could be compared with {config.truth}{f' ({reasons})' if reasons else ''}; "
            "truth images have the sources' relative names"
        )
    folder.mkdir(parents=True, exist_ok=True)
    models = dict.fromkeys(row.model for row in rows)
    convention = {
        "psnr_ssim": f"Y of BT.601 as MATLAB's rgb2ycbcr, rounded; {border} px border cut",
        "bicubic": "the source enlarged with Pillow's bicubic (a = -0.5)",
        "lpips": LPIPS_CONVENTION if measure_lpips else None,
    }
    figures = ("psnr", "ssim", "bicubic_psnr", "lpips")
    means = mean_figures([{name: getattr(row, name) for name in figures} for row in rows])
    content = {
        "model": "; ".join(models),
        "engine": config.engine,
        "convention": convention,
        "mean": _finite(means),
        "pictures": [_finite(asdict(row)) for row in rows],
        "not_compared": dict(left_out),
    }
    atomic_write(folder / "figures.json", (json.dumps(content, indent=2) + "\n").encode())
    table = _table(rows, means, convention)
    table += "".join(f"not compared: {name}: {reason}\n" for name, reason in left_out)
    atomic_write(folder / "figures.txt", table.encode("utf-8", "surrogateescape"))
    with atomic_path(folder / "contact-sheet.png") as path:
        _contact_sheet(sheet).save(path)
    print(printable_text(table), end="")
    print(f"report: {folder}")
    return not problems


def report_folder(config: RestoreConfig) -> Path:
    """Where the report goes."""
    return config.report or config.out / "report"


def check_report(config: RestoreConfig, sources: Sequence[Source]) -> None:
    """Refuses a report that would replace a restored image.

    Raises:
      InputError: a result has the name of one of the report's files.
    """
    report = {(report_folder(config) / name).resolve(): name for name in RESULTS}
    for source in sources:
        if name := report.get(named_result(source, config).resolve()):
            raise InputError(
                f"the result of {source.path} would be {named_result(source, config)}, as the "
                f"report's {name} is; give the report another folder with --report"
            )


def _find(truth: Path, relative: Path) -> Path | None:
    """The image of that name under the truth folder, with any ending of an image."""
    exact = truth / relative
    if exact.is_file():
        return exact
    same = exact.parent.glob(f"{glob.escape(relative.stem)}.*")
    images = (path for path in sorted(same) if path.stem == relative.stem)
    return next((path for path in images if path.is_file() and claims_to_be_picture(path)), None)


def _rgb(picture: Picture) -> np.ndarray:
    """Upright 8-bit RGB without transparency."""
    pixels = upright(picture.pixels, picture.notes.orientation)
    if picture.kind.endswith("alpha"):
        pixels = pixels[..., :-1]
    if pixels.dtype == np.uint16:
        pixels = ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if picture.kind == "cmyk":
        return np.asarray(Image.fromarray(np.ascontiguousarray(pixels), "CMYK").convert("RGB"))
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _figures(
    name: str,
    model: str,
    images: tuple[np.ndarray, np.ndarray, np.ndarray],
    border: int,
    lpips: Callable[[np.ndarray, np.ndarray], float] | None,
) -> ImageQuality:
    from jaxsr.ops.quality import psnr, ssim

    result, truth, source = images
    if result.shape != truth.shape:
        sizes = [f"{image.shape[1]}×{image.shape[0]}" for image in (result, truth)]
        raise InputError(f"the result is {sizes[0]}, the truth {sizes[1]}")
    convention = {"luma": "matlab", "crop_border": border}
    bicubic = None
    if source.shape != truth.shape:
        enlarged = Image.fromarray(source).resize(truth.shape[1::-1], Image.Resampling.BICUBIC)
        bicubic = float(psnr(np.asarray(enlarged), truth, **convention))
    return ImageQuality(
        name=name,
        model=model,
        psnr=float(psnr(result, truth, **convention)),
        ssim=float(ssim(result, truth, **convention)),
        bicubic_psnr=bicubic,
        lpips=lpips(result, truth) if lpips else None,
    )


def _finite(row: Mapping[str, Any]) -> JsonObject:
    """JSON has no infinity: null stands for it."""
    infinite = (math.inf, -math.inf)
    return {name: None if value in infinite else value for name, value in row.items()}


def _table(rows: Sequence[ImageQuality], means: dict, convention: dict) -> str:
    columns = [("psnr", "PSNR dB", 2), ("bicubic_psnr", "bicubic", 2), ("ssim", "SSIM", 4)]
    columns = [c for c in [*columns, ("lpips", "LPIPS", 4)] if c[0] in means]
    longest = max(len(row.name) for row in rows)
    lines = [" " * longest + "".join(f"{title:>10}" for _, title, _ in columns)]
    mean = {"name": "mean", **means}
    for row in [*(asdict(row) for row in rows), mean]:
        cells = (
            f"{row[key]:>10.{digits}f}" if row.get(key) is not None else f"{'–':>10}"
            for key, _, digits in columns
        )
        lines.append(f"{row['name']:<{longest}}" + "".join(cells))
    lines.append(
        f"PSNR and SSIM: {convention['psnr_ssim']}. LPIPS: {convention['lpips'] or 'no weights'}."
    )
    if any(math.inf in (row.psnr, row.bicubic_psnr) for row in rows):
        lines.append("Means of PSNR leave out images without any error.")
    return "\n".join(lines) + "\n"


def _cells(result: np.ndarray, truth: np.ndarray, source: np.ndarray) -> list[Image.Image]:
    """The middle of the enlarged source, the result and the truth, for the contact sheet."""
    enlarged = Image.fromarray(source).resize(truth.shape[1::-1], Image.Resampling.BICUBIC)
    cells: list[Image.Image] = []
    for image in (enlarged, Image.fromarray(result), Image.fromarray(truth)):
        x, y = (max((side - _CELL) // 2, 0) for side in image.size)
        cells.append(image.crop((x, y, min(x + _CELL, image.width), min(y + _CELL, image.height))))
    return cells


def _contact_sheet(entries: Sequence[tuple[str, Sequence[Image.Image]]]) -> Image.Image:
    """A row of cells for each image."""
    gap, head = 4, 16
    across, down = _CELL + gap, _CELL + head + gap
    sheet = Image.new("RGB", (3 * across, max(down * len(entries), 1)), "white")
    draw = ImageDraw.Draw(sheet)
    for index, (name, cells) in enumerate(entries):
        labels = (f"{name}: source, bicubic", "restored", "truth")
        for column, (label, cell) in enumerate(zip(labels, cells, strict=True)):
            left, top = column * across, index * down
            draw.text((left + 2, top + 2), label[:40], fill="black")
            sheet.paste(cell, (left, top + head))
    return sheet
