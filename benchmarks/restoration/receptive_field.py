"""CPU seconds until `jaxsr.restore` knows how far a network sees, at published sizes."""

import time
from dataclasses import dataclass

from benchmarks.harness.report import Report, ReportOptions, run_benchmark
from jaxsr.restoration.receptive_field import measure_reach
from tests.oracles.restorers import published


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    only: tuple[str, ...] = ("Compact", "SPAN", "RRDBNet", "RCAN", "SwinIR-M", "HAT", "DAT")
    """Networks to read, of `tests/oracles/restorers.py`."""


def measure(options: Options) -> None:
    """Reads the networks one after another."""
    report = Report("receptive_field", options, key=("network",))
    for name in options.only:
        network = published(name)
        before = time.process_time()
        reach = measure_reach(network, channels=3)
        cpu_s = round(time.process_time() - before, 2)
        report.add({"network": name, "cpu_s": cpu_s, **vars(reach)})
        print(f"{name}: {cpu_s} s, margin {reach.margin}, period {reach.period} {reach.cause}")


if __name__ == "__main__":
    run_benchmark(measure, Options)
