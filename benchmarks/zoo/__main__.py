"""`python -m benchmarks.zoo`."""

from benchmarks.harness.report import run_benchmark
from benchmarks.zoo.checks import Options, measure

if __name__ == "__main__":
    run_benchmark(measure, Options)
