"""Whether another call of traced code computes the same, though Python state changed.

The calls are traced into one program. Their results are compared by the equations that compute
them: a table that the first call has cached is the same variable in the second, and a count that
decides a branch or a factor gives another equation.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.typing import ArrayLike

_OF_CALL = "state of call"
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def of_call(array: ArrayLike, number: int) -> jax.Array:
    """A parameter or buffer in the call of that number, where it may be another one."""
    return checkpoint_name(jnp.asarray(array), f"{_OF_CALL} {number}")


def equal_calls(program: Callable[[], Sequence[Any]]) -> bool:
    """Whether several calls compute alike, each from its own parameters and buffers (`of_call`).

    Args:
      program: runs them, and returns the result of each, a pytree.
    """
    arrays: list[int] = []
    others: list[str] = []

    def flat() -> list[Any]:
        leaves = [jax.tree.leaves(result) for result in program()]
        kept = [[x for x in part if isinstance(x, (jax.Array, np.ndarray))] for part in leaves]
        arrays[:] = [len(part) for part in kept]
        others[:] = [
            repr([x for x in part if not isinstance(x, (jax.Array, np.ndarray))]) for part in leaves
        ]
        return [leaf for part in kept for leaf in part]

    closed = jax.make_jaxpr(flat)()
    if len(set(arrays)) > 1 or len(set(others)) > 1:
        return False
    known: dict[Any, int] = {}
    calls = [_numbers(closed, known, number) for number in range(len(arrays))]
    parts = [slice(arrays[0] * i, arrays[0] * (i + 1)) for i in range(len(arrays))]
    return all(call[part] == calls[0][parts[0]] for call, part in zip(calls, parts, strict=True))


def _numbers(closed: ClosedJaxpr, known: dict[Any, int], call: int) -> list[int]:
    """A number for each result; equal ones are computed alike.

    Args:
      closed: the program of all calls.
      known: the numbers so far; calls are compared by one table.
      call: number of the call whose own arrays have the same numbers as those of other calls.
    """
    of_variable: dict[Var, int] = {}

    def number(key: Any) -> int:
        return known.setdefault(key, len(known))

    def operand(value: Any) -> int:
        if isinstance(value, Literal):
            return number(("literal", str(value.val), str(value.aval)))
        return of_variable[value]

    for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        of_variable[variable] = number(("constant", _digest(value)))
    for eqn in closed.jaxpr.eqns:
        operands = tuple(operand(v) for v in eqn.invars)
        key = (eqn.primitive.name, operands, _parameters(eqn.params, f"{_OF_CALL} {call}"))
        for i, variable in enumerate(eqn.outvars):
            of_variable[variable] = number((key, i))
    return [operand(v) for v in closed.jaxpr.outvars]


def _digest(value: Any) -> Any:
    if isinstance(value, jax.core.Tracer) or not isinstance(value, (jax.Array, np.ndarray)):
        return id(value)
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return id(value)
    array = np.asarray(value)
    return (array.shape, array.dtype.str, hash(array.tobytes()))


def _parameters(params: dict[str, Any], label: str) -> tuple:
    def without_label(value: Any) -> Any:
        return "" if isinstance(value, str) and value == label else _parameter(value)

    return tuple((name, without_label(params[name])) for name in sorted(params))


def _parameter(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return (str(value.jaxpr), *(_digest(const) for const in value.consts))
    if isinstance(value, Jaxpr):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_parameter(part) for part in value)
    return _ADDRESS.sub("", str(value)) if not callable(value) else getattr(value, "__name__", "")
