"""`python -m benchmarks.reliability`."""

from benchmarks.harness.report import run_benchmark
from benchmarks.reliability.repeat import Options, measure

if __name__ == "__main__":
    run_benchmark(measure, Options)
