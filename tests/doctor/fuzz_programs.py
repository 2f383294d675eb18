"""Random programs of what compilers fuse, judged by the exact result.

A program is a list of steps of whole numbers. Whatever they are, they stand for a program: each is
taken modulo what is possible at its place. Steps can therefore be left out or made smaller, and so
a failing program is shrunk. `fuzz_operations` has the operations, and the bound of the rounding
error.

`python -m tests.doctor.fuzz_programs SEED …` runs the programs of those seeds, or `[[…], …]` one
that is written out, and prints a line of JSON for each.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jaxsr.doctor.compiler import Verdict, print_verdict
from tests.doctor.fuzz_operations import DTYPES, MOST_ELEMENTS, SIZES, TINY, Value, apply

Steps = list[list[int]]
"""The first step is the input: dtype, rank and sizes. The others: operation, operands, options."""


@dataclasses.dataclass
class Operation:
    """One operation of a program."""

    operands: tuple[int, ...]
    """Numbers of values."""
    compute: Callable[..., Any]
    """By JAX, of the operands."""


def random_steps(seed: int) -> Steps:
    """The program of a seed."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 8))
    head = [int(rng.integers(3)), rank, *rng.integers(0, 1 << 16, rank).tolist(), seed]
    return [head, *rng.integers(0, 1 << 16, (int(rng.integers(3, 12)), 6)).tolist()]


def _input(head: Sequence[int]) -> Value:
    dtype, rank = DTYPES[head[0] % 3], max(1, head[1] % 8)
    sizes = [SIZES[number % len(SIZES)] for number in (*head[2:-1], *[0] * rank)][:rank]
    while np.prod(sizes) > MOST_ELEMENTS:
        largest = int(np.argmax(sizes))
        sizes[largest] = sizes[largest] // 2
    rng = np.random.default_rng(head[-1])
    if dtype == "int32":
        return Value(rng.integers(-1000, 1000, sizes).astype(np.int32), 0.0, dtype)
    numbers = rng.standard_normal(sizes).astype(np.float32)
    numbers = numbers.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else numbers
    return Value(numbers.astype(np.float64), np.zeros(sizes), dtype)


def build(steps: Steps) -> tuple[list[Value], list[Operation]]:
    """All values of a program, the input first, and the operations that make the others."""
    values, operations = [_input(steps[0])], []

    for kind, a, b, p, q, r in steps[1:]:
        # The latest value mostly, so that chains grow long.
        i = len(values) - 1 if a % 4 else a // 4 % len(values)
        j = b % len(values)
        with np.errstate(over="ignore"):
            operands, result = apply(kind, values[i], values[j], i, j, p, q, r)
        if result is None:
            continue
        values.append(result[0])
        operations.append(Operation(operands, result[1]))
        last = values[-1]
        if last.dtype != "int32" and np.abs(last.exact).max(initial=0) > 1e3:
            scaled = Value(last.exact / 1024, np.asarray(last.error) / 1024 + TINY, last.dtype)
            operations.append(Operation((len(values) - 1,), lambda v: v * 2.0**-10))
            values.append(scaled)
    return values, operations


def for_jax(steps: Steps) -> tuple[Callable[..., Any], np.ndarray, dict[int, Value]]:
    """The program for JAX, its input, and what is known of each output."""
    values, operations = build(steps)
    outputs = {i: values[i] for i in sorted({len(values) - 1, steps[0][-1] % len(values)})}

    def program(x: Any) -> list[Any]:
        computed = [x]
        for operation in operations:
            computed.append(operation.compute(*(computed[i] for i in operation.operands)))
        return [computed[i] for i in outputs]

    dtype = ml_dtypes.bfloat16 if values[0].dtype == "bfloat16" else values[0].dtype
    return program, values[0].exact.astype(dtype), outputs


def describe(steps: Steps) -> str:
    """The program as JAX sees it."""
    import jax

    program, x, _ = for_jax(steps)
    return str(jax.make_jaxpr(program)(x))


def judge(steps: Steps) -> str | None:
    """Describes the error in the compiled program's last values; None where they are right."""
    import jax

    program, x, outputs = for_jax(steps)
    try:
        results = [np.asarray(result) for result in jax.jit(program)(x)]
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    for (number, value), result in zip(outputs.items(), results, strict=True):
        if result.shape != value.shape or str(result.dtype) != value.dtype:
            return f"v{number} is {result.dtype}{list(result.shape)}"
        distance = np.abs(result.astype(np.float64) - value.exact)
        wrong = np.argwhere(~(distance <= value.error))
        if len(wrong):
            first = tuple(wrong[0].tolist())
            bound = np.broadcast_to(value.error, value.shape)[first]
            return (
                f"{len(wrong)} of {result.size} values of v{number} are wrong: at {list(first)} "
                f"{result[first]} instead of {value.exact[first]} ± {bound:.1e}"
            )
    return None


def shrink(steps: Steps, fails: Callable[[Steps], bool], *, most: int = 80) -> Steps:
    """A smaller program that fails, too.

    Args:
      steps: of a program that fails.
      fails: whether another one does.
      most: calls of `fails`.
    """
    calls = 0

    def smaller() -> list[Steps]:
        shorter = [steps[:i] + steps[i + 1 :] for i in range(len(steps) - 1, 0, -1)]
        head = steps[0]
        sizes = [
            [[*head[:i], size, *head[i + 1 :]], *steps[1:]]
            for i in range(2, len(head) - 1)
            for size in range(head[i] % len(SIZES))
        ]
        fewer = [
            [[head[0], head[1] - 1, *head[2:i], *head[i + 1 :]], *steps[1:]]
            for i in range(2, len(head) - 1)
            if head[1] > 1
        ]
        return shorter + fewer + sizes

    changed = True
    while changed:
        changed = False
        for candidate in smaller():
            if calls == most:
                return steps
            calls += 1
            if fails(candidate):
                steps, changed = candidate, True
                break
    return steps


def parse(name: str) -> Steps:
    """The steps that a word of the command line stands for."""
    return json.loads(name) if name.startswith("[") else random_steps(int(name))


if __name__ == "__main__":
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    for word in sys.argv[1:]:
        print_verdict(Verdict(word, True, judge(parse(word))))
