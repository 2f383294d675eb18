"""`jaxsr compare ops`: options, files and output of the comparison of resizes."""

import json
import sys

from jaxsr.comparison.compare_ops import Options, against_published, as_json, compare_ops
from jaxsr.comparison.ops_figure import draw_comparison
from jaxsr.comparison.ops_report import print_tables
from jaxsr.data.photos import open_photos
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.mesh import select_platform
from jaxsr.runtime.cli import parse_options
from jaxsr.runtime.setup import configure_jax


def run(arguments: list[str]) -> None:
    """Resize of jaxsr, torch, torchvision, OpenCV, Pillow and jax.image: precision and time."""
    options = parse_options(
        Options, arguments, prog="python -m jaxsr.compare ops", description=run.__doc__ or ""
    )
    configure_jax(None)  # times of first runs include compiling
    select_platform(options.platform)
    photos = open_photos(options.images, crop=1, check="header")
    chosen = range(min(options.limit, len(photos)))
    pictures = [photos.read(index) for index in chosen]
    described = {photos.names[k]: list(pictures[k].shape) for k in chosen}
    groups = compare_ops(
        options, pictures, progress=lambda text: print(f"resizing: {text}", file=sys.stderr)
    )
    print_tables(groups, against_published(options, groups))
    options.out.mkdir(parents=True, exist_ok=True)
    content = json.dumps(as_json(options, groups, described), indent=1, ensure_ascii=False) + "\n"
    atomic_write(options.out / "comparison.json", content.encode())
    atomic_write(options.out / "comparison.png", draw_comparison(groups))
    print(f"wrote {options.out}/comparison.json and comparison.png")
