"""`python -m benchmarks.conformance`."""

from benchmarks.conformance.suite import Options, measure
from benchmarks.harness.report import run_benchmark

if __name__ == "__main__":
    run_benchmark(measure, Options)
