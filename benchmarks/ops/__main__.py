"""`python -m benchmarks.ops`."""

from benchmarks.harness.report import run_benchmark
from benchmarks.ops.races import Options, measure

if __name__ == "__main__":
    run_benchmark(measure, Options)
