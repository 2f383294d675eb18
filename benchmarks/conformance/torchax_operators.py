"""Which operators are computed by torchax's lowerings, and how much of what is tested runs them.

Every aten overload that `jaxsr.interop.explain` gives to torchax, with the number of conformance
programs and of entries of torch's database of operators that dispatch it. Programs are traced,
forward alone; those that are refused, or where torch fails, count as far as they came. The names
stand in `interop/_core/torchax_operators.py`, which `doctor` and the dispatcher read.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.report import RESULTS, Report, ReportOptions, run_benchmark

DTYPES = ("float32", "int64", "bool")


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    samples: int = 1
    """Samples that are traced of each entry and dtype of the database: the first ones.
    0: `op_db` is null."""
    out: Path | None = RESULTS / "torchax_operators.json"
    """JSON of the results."""


@contextmanager
def dispatched() -> Iterator[set[Any]]:
    """The operators that the dispatcher gets in the block."""
    from jaxsr.interop._core import dispatch

    plain, seen = dispatch.Dispatcher.dispatch, set()

    def record(self: Any, func: Any, args: Any, kwargs: Any) -> Any:
        seen.add(func)
        return plain(self, func, args, kwargs)

    dispatch.Dispatcher.dispatch = record
    try:
        yield seen
    finally:
        dispatch.Dispatcher.dispatch = plain


def _trace(module: Any, arrays: Callable[[], list[Any]], **options: Any) -> None:
    import jax
    from torch.utils import _pytree as pytree

    from jaxsr.interop import to_jax

    def apply(*inputs: Any) -> list[Any]:
        out, _ = model.apply(model.params, model.buffers, *inputs, **options)
        return [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, jax.Array)]

    try:
        model = to_jax(module)
        jax.eval_shape(apply, *arrays())
    except Exception as error:
        print(f"stopped: {type(error).__name__}: {str(error).splitlines()[0][:120]}", flush=True)


def _count(programs: Iterator[Callable[[], None]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for program in programs:
        with dispatched() as seen:
            program()
        counts.update({str(func) for func in seen})
    return counts


def _conformance() -> Iterator[Callable[[], None]]:
    from tests.oracles.conformance import functions, functions_algebra, layers, modules, programs  # noqa: F401
    from tests.oracles.conformance.registry import CASES

    for case in CASES.values():
        yield lambda case=case: _trace(
            case.module(), case.arrays, train=case.train, method=case.method
        )


def _database(samples: int) -> Iterator[Callable[[], None]]:
    import jax

    from tests.oracles.operators import samples as database

    def run(name: str) -> None:
        for _, dtype in (pair for pair in database.pairs(name, DTYPES) if pair[0] == name):
            for _, sample in zip(range(samples), database.samples(name, dtype), strict=False):
                with jax.enable_x64(True):
                    _trace(sample.module, lambda: [*sample.arguments.arrays.values()])  # noqa: B023

    for name in database.operators():
        yield lambda name=name: run(name)


def measure(options: Options) -> None:
    """Counts, and writes a row for each operator."""
    report = Report("torchax_operators", options)
    os.environ["JAX_PLATFORMS"] = "cpu"
    warnings.simplefilter("ignore")
    from jaxsr.interop import explain
    from jaxsr.interop._core.torchax_operators import OPERATORS

    conformance = _count(_conformance())
    database = _count(_database(options.samples)) if options.samples else None
    for name in sorted(OPERATORS):
        (operator,) = explain(name).operators
        assert operator.who == "torchax lowering", operator
        row = {
            "operator": name,
            "source": operator.source,
            "conformance": conformance[name],
            "op_db": database[name] if database is not None else None,
        }
        report.add(row)
        print(f"{row['conformance']:4} {row['op_db']!s:>4} {name}", flush=True)


if __name__ == "__main__":
    run_benchmark(measure, Options)
