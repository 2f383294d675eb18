"""`jaxsr compare ops`: options, files and output of the comparison of resizes."""

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from jaxsr.comparison.compare_ops import Group, Options, against_published, as_json, compare_ops
from jaxsr.comparison.ops_figure import draw_comparison
from jaxsr.comparison.text_report import PLAIN_WIDTH
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
    _print_tables(groups, against_published(options, groups))
    options.out.mkdir(parents=True, exist_ok=True)
    content = json.dumps(as_json(options, groups, described), indent=1, ensure_ascii=False) + "\n"
    atomic_write(options.out / "comparison.json", content.encode())
    atomic_write(options.out / "comparison.png", draw_comparison(groups))
    print(f"wrote {options.out}/comparison.json and comparison.png")


def _print_tables(groups: Sequence[Group], published: Sequence[str]) -> None:
    """A table of differences and one of times for each method and dtype, then the comparison."""
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    for group in groups:
        table = Table(title=f"{group.method}, {group.dtype}: absolute differences")
        for heading in ("pair", "scale", "max", "mean", "median", "p99.9", "equal", "unequal"):
            table.add_column(heading, justify="left" if heading in ("pair", "scale") else "right")
        for (first, second), differences in group.pairs.items():
            for row, d in enumerate(differences):
                figures = (f"{x:.3g}" for x in (d.largest, d.mean, d.median, d.p999))
                pair = f"{first} – {second}" if row == 0 else ""
                table.add_row(pair, d.scale, *figures, f"{d.equal:,}", f"{d.unequal:,}")
        console.print(table)
        times = Table(title=f"{group.method}, {group.dtype}: seconds for the first picture")
        for heading in ("library", "first run", "cached, median", "cached, least", "rule"):
            times.add_column(heading, justify="left" if heading in ("library", "rule") else "right")
        for name, timing in group.timings.items():
            figures = (f"{s:.5f}" for s in (timing.first, timing.median, min(timing.cached)))
            times.add_row(name, *figures, group.rules.get(name, ""))
        console.print(times)
        for sentence in group.absent:
            console.print(f"left out: {sentence}", markup=False)
    for sentence in published:
        console.print(sentence, markup=False)
