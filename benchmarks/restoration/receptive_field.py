"""CPU seconds until `jaxsr.restore` knows how far a network sees, at published sizes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.report import Report, ReportOptions, run_benchmark
from jaxsr.models.build import build_network
from jaxsr.models.libraries import import_library
from jaxsr.models.spandrel_weights import freeze_merged
from jaxsr.restoration.receptive_field import measure_reach

_WINDOWED = {"upscale": 4, "depths": [6] * 6, "num_heads": [6] * 6, "embed_dim": 180}
NETWORKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Compact": ("Compact.__arch.SRVGG:SRVGGNetCompact", {"num_conv": 32, "upscale": 4}),
    "SPAN": ("SPAN.__arch.span:SPAN",
             {"num_in_ch": 3, "num_out_ch": 3, "feature_channels": 48, "upscale": 4}),
    "RRDBNet": ("ESRGAN.__arch.RRDB:RRDBNet",
                {"in_nc": 3, "out_nc": 3, "num_filters": 64, "num_blocks": 23, "scale": 4}),
    "RCAN": ("RCAN.__arch.rcan_arch:RCAN", {"n_resgroups": 10, "n_resblocks": 20, "scale": 4}),
    "SwinIR-M": ("SwinIR.__arch.SwinIR:SwinIR",
                 {**_WINDOWED, "img_size": 64, "window_size": 8, "mlp_ratio": 2,
                  "upsampler": "nearest+conv"}),
    "HAT": ("HAT.__arch.HAT:HAT",
            {**_WINDOWED, "img_size": 64, "window_size": 16, "mlp_ratio": 2,
             "upsampler": "pixelshuffle"}),
    "DAT": ("DAT.__arch.DAT:DAT",
            {"upscale": 4, "img_size": 64, "split_size": [8, 32], "depth": [6] * 6,
             "embed_dim": 180, "num_heads": [6] * 6, "expansion_factor": 4}),
}  # fmt: skip
"""Name -> class below `spandrel.architectures`, and its sizes."""


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    only: tuple[str, ...] = tuple(NETWORKS)
    """Networks to read."""


def measure(options: Options) -> None:
    """Reads the networks one after another."""
    import_library("spandrel")
    report = Report("receptive_field", options, key=("network",))
    for name in options.only:
        spec, sizes = NETWORKS[name]
        network = freeze_merged(build_network(f"spandrel.architectures.{spec}", sizes).eval())
        before = time.process_time()
        reach = measure_reach(network, channels=3)
        cpu_s = round(time.process_time() - before, 2)
        row = {"network": name, "cpu_s": cpu_s, **vars(reach)}
        report.add(row)
        print(f"{name}: {cpu_s} s, margin {reach.margin}, period {reach.period} {reach.cause}")


if __name__ == "__main__":
    run_benchmark(measure, Options)
