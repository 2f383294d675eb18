"""The precision comparison of kernels: every library against every other, on the same images.

Within one method and dtype all pairs are compared. A library without bfloat16 stands in that group
with its float32 result, so that bfloat16 is judged against something exact.
"""

import platform
import time
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np

from jaxsr.comparison.kernel_libraries import Contender, library_versions, make_contenders
from jaxsr.comparison.ops_options import OpsOptions
from jaxsr.interop.annotations import JsonObject

SCALES = ("0…255", "[-1, 1]")

PUBLISHED = {
    "what": "uint8 frames to 1080x640, bilinear without antialias, against OpenCV INTER_LINEAR",
    "scale": "[-1, 1]",
    "largest": 0.0078,
    "mean": 0.0008,
    "bfloat16_largest_on_0_255": 1.7109,
    "seconds_first_tpu_v6e": 0.5847,
    "seconds_cached_tpu_v6e": 0.0282,
    "seconds_cached_b200": 0.0004,
}
"""The figures that the default run is compared with; "mean" was published as a median."""


@dataclass(frozen=True)
class Difference:
    """Absolute differences of all values of a pair, on one scale."""

    scale: str
    largest: float
    mean: float
    median: float
    p999: float
    """99.9th percentile."""
    equal: int
    """Values without any difference."""
    unequal: int


def difference_on(scale: str, first: np.ndarray, second: np.ndarray) -> Difference:
    """Compares two arrays of 0…255 on one of `SCALES`.

    Both are brought to the scale in float32, as a network's input would be, and compared there:
    normalisation may make two values equal that were not, or the other way about.
    """
    if scale == "[-1, 1]":
        first, second = (x.astype(np.float32) / np.float32(127.5) - 1 for x in (first, second))
    distances = np.abs(first.astype(np.float32) - second.astype(np.float32)).ravel()
    median, p999 = np.percentile(distances, (50, 99.9))
    unequal = int(np.count_nonzero(distances))
    return Difference(
        scale=scale,
        largest=float(distances.max()),
        mean=float(distances.mean(dtype=np.float64)),
        median=float(median),
        p999=float(p999),
        equal=distances.size - unequal,
        unequal=unequal,
    )


@dataclass(frozen=True)
class Timing:
    """One library's times for the first image, in seconds."""

    first: float
    """Trace and compile included, where the library does that."""
    cached: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the cached runs."""
        return median(self.cached)


@dataclass(frozen=True)
class Group:
    """All libraries at one method and dtype."""

    method: str
    dtype: str
    rules: dict[str, str]
    """Notes on each library's result, where that is not the method's plain meaning."""
    timings: dict[str, Timing]
    pairs: dict[tuple[str, str], tuple[Difference, ...]]
    """For each pair of names the difference on each scale."""
    absent: tuple[str, ...]
    results: dict[str, list[np.ndarray]] = field(repr=False)
    """Results on 0…255, image by image."""


def compare_ops(
    options: OpsOptions, pictures: Sequence[np.ndarray], *, progress: Callable[[str], None]
) -> list[Group]:
    """Runs every library on every image and compares the results in pairs.

    Args:
      options: the operations and libraries to compare.
      pictures: uint8 (height, width, 3).
      progress: called with a line on each stage.
    """
    groups = []
    methods = options.methods if options.operation == "resize" else (options.operation,)
    for method in methods:
        for dtype in options.dtypes:
            progress(f"{method} {dtype}")
            groups.append(_group(options, pictures, method, dtype))
    return groups


def _group(options: OpsOptions, pictures: Sequence[np.ndarray], method: str, dtype: str) -> Group:
    contenders, absent = make_contenders(options, method, dtype)
    if dtype == "bfloat16":
        present = {c.library for c in contenders}
        exact, _ = make_contenders(options, method, "float32")
        contenders += [c for c in exact if c.library not in present]
    timings, results = {}, {}
    for one in contenders:
        timings[one.name], results[one.name] = _run(one, pictures, options.runs)
    pairs = {}
    for first, second in combinations(results, 2):
        if not (first.endswith(dtype) or second.endswith(dtype)):
            continue  # two stand-ins for a dtype that neither has: the pair is in another group
        a, b = (np.concatenate([x.ravel() for x in results[name]]) for name in (first, second))
        pairs[first, second] = tuple(difference_on(scale, a, b) for scale in SCALES)
    return Group(
        method=method,
        dtype=dtype,
        rules={c.name: c.rule for c in contenders if c.rule},
        timings=timings,
        pairs=pairs,
        absent=tuple(absent),
        results=results,
    )


def _run(
    contender: Contender, pictures: Sequence[np.ndarray], runs: int
) -> tuple[Timing, list[np.ndarray]]:
    image = contender.load(pictures[0])
    seconds, result = [], None
    for _ in range(runs + 1):
        start = time.perf_counter()
        result = contender.run(image)
        seconds.append(time.perf_counter() - start)
    results = [contender.fetch(result)]
    results += [contender.fetch(contender.run(contender.load(p))) for p in pictures[1:]]
    return Timing(seconds[0], tuple(seconds[1:])), results


_FOLLOWED = {"torch": "torch", "torchvision": "torchvision", "opencv": "OpenCV", "pillow": "Pillow"}


def verdict(options: OpsOptions, groups: Sequence[Group]) -> str:
    """How far jaxsr is from the library whose rule it follows, in each group that has both."""
    parts = []
    for group in groups:
        pairs = {pair: d for pair, d in group.pairs.items() if pair[0].startswith("jaxsr")}
        by_library = {second.partition(" ")[0]: d[0] for (_, second), d in pairs.items()}
        rule = next(iter(pairs), ("",))[0].partition("(")[2].partition(")")[0]
        library = _FOLLOWED.get(rule, "OpenCV")
        if by_library:
            # torchvision's rule of a blur is OpenCV's but for rounding; it may not import.
            library = next(n for n in (library, "OpenCV", *by_library) if n in by_library)
            levels = by_library[library]
            share = levels.equal / (levels.equal + levels.unequal)
            parts.append(
                f"{group.method} {group.dtype}: at most {levels.largest:.3g} of 255 from "
                f"{library}, {share:.1%} equal"
            )
    return "; ".join(parts) or f"no library but jaxsr does {options.operation} here"


def against_published(options: OpsOptions, groups: Sequence[Group]) -> list[str]:
    """Compares this run's figures with the published ones; empty for another comparison.

    The published recipe resizes in float32, rounds to uint8 and compares with OpenCV's uint8.
    """
    plain = options.operation == "resize" and not options.antialias
    if options.size != (1080, 640) or not plain or options.convention != "torch":
        return []
    results, timings, pairs = (
        ChainMap(
            *(getattr(group, name) for group in reversed(groups) if group.method == "bilinear")
        )
        for name in ("results", "timings", "pairs")
    )
    name_of_jaxsr, lines = "jaxsr (torch)", []
    if {f"{name_of_jaxsr} float32", "OpenCV uint8"} <= results.keys():
        rounded = [np.rint(x).ravel() for x in results[f"{name_of_jaxsr} float32"]]
        levels = [x.ravel() for x in results["OpenCV uint8"]]
        d = difference_on("[-1, 1]", np.concatenate(rounded), np.concatenate(levels))
        timing = timings[f"{name_of_jaxsr} float32"]
        lines += [
            f"jaxsr float32, rounded to uint8, against OpenCV uint8, scale {d.scale}: "
            f"max {d.largest:.4f} (published {PUBLISHED['largest']}), "
            f"mean {d.mean:.4f} (published {PUBLISHED['mean']}), median {d.median:.4f}, "
            f"{d.equal:,} zero and {d.unequal:,} non-zero differences; "
            "0.0078 is one uint8 level",
            f"first run {timing.first:.4f} s, then {timing.median:.4f} s "
            f"(published TPU v6e {PUBLISHED['seconds_first_tpu_v6e']} and "
            f"{PUBLISHED['seconds_cached_tpu_v6e']} s, B200 {PUBLISHED['seconds_cached_b200']} s; "
            "another device and other frames)",
        ]
    for library in (name_of_jaxsr, "jax.image"):
        pair = pairs.get((f"{library} bfloat16", "OpenCV float32"))
        if pair is not None:
            sums = "float32" if library == name_of_jaxsr else "bfloat16"
            lines.append(
                f"{library} bfloat16 (sums in {sums}) against OpenCV float32, scale "
                f"{pair[0].scale}: max {pair[0].largest:.4f} "
                f"(published {PUBLISHED['bfloat16_largest_on_0_255']})"
            )
    return lines


def as_json(options: OpsOptions, groups: Sequence[Group], pictures: JsonObject) -> JsonObject:
    """Everything but the images, for a file."""
    import jax

    device = jax.devices()[0]
    described = asdict(options)
    described |= {k: str(v) for k, v in described.items() if isinstance(v, Path)}
    return {
        "options": described,
        "pictures": pictures,
        "versions": library_versions(),
        "jax_device": f"{device.platform}: {device.device_kind}",
        "cpu": platform.processor() or platform.machine(),
        "published": PUBLISHED,
        "against_published": against_published(options, groups),
        "groups": [
            {
                **{name: getattr(group, name) for name in ("method", "dtype", "rules", "absent")},
                "seconds": {
                    name: {"first": t.first, "cached": t.cached, "cached_median": t.median}
                    for name, t in group.timings.items()
                },
                "pairs": [
                    {"pair": pair, "differences": [asdict(d) for d in differences]}
                    for pair, differences in group.pairs.items()
                ],
            }
            for group in groups
        ],
    }
