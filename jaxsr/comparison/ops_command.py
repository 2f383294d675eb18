"""`jaxsr compare ops`: report, figure and files of the comparison of kernels."""

import json
import sys
from collections.abc import Sequence

import numpy as np

from jaxsr.comparison.compare_ops import (
    Group,
    against_published,
    as_json,
    compare_ops,
    verdict,
)
from jaxsr.comparison.kernel_libraries import library_versions
from jaxsr.comparison.ops_options import OpsOptions
from jaxsr.comparison.report import Line, Report, Table, print_report
from jaxsr.data.photos import Photos, open_photos
from jaxsr.data.result_folder import result_folder
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.mesh import select_platform
from jaxsr.metrics.plot import as_png, in_default_style, new_figure
from jaxsr.runtime.setup import configure_jax, share_gpu_memory

_PART_PX = 300
_BINS = 60


def compare(options: OpsOptions) -> None:
    """Compares, prints tables, and writes JSON and the figure."""
    share_gpu_memory()
    configure_jax(None)  # times of first runs include compiling
    select_platform(options.platform)
    photos = open_photos(options.images, crop=1, check="header")
    with result_folder(options.out, ("comparison.json", "comparison.png")):
        _compare(options, photos)


def _compare(options: OpsOptions, photos: Photos) -> None:
    chosen = range(min(options.limit, len(photos)))
    pictures = [photos.read(index) for index in chosen]
    described = {photos.names[k]: list(pictures[k].shape) for k in chosen}
    groups = compare_ops(
        options, pictures, progress=lambda text: print(f"running: {text}", file=sys.stderr)
    )
    print_report(report_of(options, groups, described))
    content = json.dumps(as_json(options, groups, described), indent=1, ensure_ascii=False) + "\n"
    atomic_write(options.out / "comparison.json", content.encode())
    atomic_write(options.out / "comparison.png", _draw_pairs(groups))
    print(f"wrote {options.out}/comparison.json and comparison.png")


def report_of(
    options: OpsOptions, groups: Sequence[Group], pictures: dict[str, list[int]]
) -> Report:
    """The verdict, the sources, and two tables for each method and dtype."""
    sources = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in pictures.items())
    versions = ", ".join(f"{n} {v}" for n, v in library_versions().items() if v != "not importable")
    tables = []
    for group in groups:
        suffix = f" {group.dtype}"
        lines = []
        for pair, differences in group.pairs.items():
            names = " – ".join(name.removesuffix(suffix) for name in pair)
            for d in differences:
                figures = (f"{x:.3g}" for x in (d.largest, d.mean, d.median, d.p999))
                lines.append(Line([names, d.scale, *figures, f"{d.equal:,}", f"{d.unequal:,}"]))
                names = ""
        headings = ("pair", "scale", "max", "mean", "median", "p99.9", "equal", "unequal")
        title = f"{group.method}, {group.dtype}: absolute differences"
        tables.append(Table(title=title, headings=headings, left=(0, 1), lines=lines))
        times = []
        for name, timing in group.timings.items():
            seconds = (timing.first, timing.median, min(timing.cached))
            figures = (f"{s:.5f}" for s in seconds)
            times.append(Line([name.removesuffix(suffix), *figures, group.rules.get(name, "")]))
        headings = ("library", "first run", "cached, median", "cached, least", "rule")
        title = f"{group.method}, {group.dtype}: seconds for the first image"
        tables.append(Table(title=title, headings=headings, left=(0, 4), lines=times))
    return Report(
        title="jaxsr",
        status="",
        headline=verdict(options, groups),
        lines=[
            f"images: {sources}",
            f"libraries: {versions}",
            *against_published(options, groups),
        ],
        tables=tables,
        notes=[f"left out: {sentence}" for group in groups for sentence in group.absent],
    )


@in_default_style
def _draw_pairs(groups: Sequence[Group]) -> bytes:
    """PNG with one row for every pair that holds jaxsr.

    It shows the middle of the first image as the first library made it; where the two differ
    there (brighter is more; white is the largest difference over the whole image); and how often
    each difference occurs over all images, on a logarithmic scale.
    """
    pairs = [(g, pair) for g in groups for pair in g.pairs if pair[0].startswith("jaxsr")]
    figure = new_figure(11.0, 3.6 * max(len(pairs), 1))
    rows = figure.subfigures(max(len(pairs), 1), 1, squeeze=False)[:, 0]
    for row, (group, (first, second)) in zip(rows, pairs, strict=False):
        levels = group.pairs[first, second][0]
        row.suptitle(
            f"{group.method}: {first} against {second}; difference on 0…255: "
            f"max {levels.largest:.4g}, mean {levels.mean:.4g}, {levels.unequal:,} unequal",
            fontsize=10,
        )
        photo, heat, histogram = row.subplots(1, 3)
        results = zip(group.results[first], group.results[second], strict=True)
        distances = [np.abs(a - b) for a, b in results]
        levels_of_first = np.clip(np.rint(_middle(group.results[first][0])), 0, 255)
        photo.imshow(levels_of_first.astype(np.uint8), interpolation="nearest")
        worst = distances[0].max(-1)
        shown = heat.imshow(
            _middle(worst), cmap="hot", vmin=0, vmax=worst.max() or 1, interpolation="nearest"
        )
        row.colorbar(shown, ax=heat, shrink=0.8)
        for axes, title in ((photo, first), (heat, "difference, of 255")):
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()
        largest = max(float(d.max()) for d in distances)
        histogram.set_title("how often", fontsize=9)
        if largest == 0:
            histogram.set_axis_off()
            histogram.text(0.5, 0.5, "no value differs", ha="center", va="center")
            continue
        counts = np.sum([np.histogram(d, _BINS, (0, largest))[0] for d in distances], 0)
        edges = np.linspace(0, largest, _BINS + 1)
        histogram.stairs(counts, edges, fill=True)
        histogram.set(xlabel="difference, of 255", ylabel="values", yscale="log", ylim=(0.5, None))
    return as_png(figure, dpi=100)


def _middle(values: np.ndarray) -> np.ndarray:
    top, left = (max(0, (extent - _PART_PX) // 2) for extent in values.shape[:2])
    return values[top : top + _PART_PX, left : left + _PART_PX]
