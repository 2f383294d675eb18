"""Whether another call of traced code computes the same, though Python state changed.

The calls are traced into one program. Their results are compared by the equations that compute
them: a table that the first call has cached is the same variable in the second, and a count that
decides a branch or a factor gives another equation.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.typing import ArrayLike

from jaxsr.interop._core.containers import map_leaves
from jaxsr.interop.annotations import PyTree

_OF_CALL = "state of call"
_MOST_CALLS = 16
"""Calls of a method that are remembered, so that a trace is not slow for ever."""
_FOLDED = 1 << 22
"""Entries of the largest results that are computed to compare constants."""
_COMPARED = 2
"""Remembered calls with which another one is compared."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class OtherCall(NamedTuple):
    """A call that was traced before, with other inputs, of another method, or in another mode."""

    method: str
    train: bool | None
    inputs: PyTree
    """Arrays are shapes and dtypes."""
    reason: str
    """The Python state that it or the present call leaves; "" for none."""

    def difference(self, method: str, train: bool | None) -> str:
        """How a call of this method and mode is found to depend on it."""
        if (method, train) == (self.method, self.train):
            return "after it, a call with other inputs computes something else"
        names = [
            f"{name}(), train={mode}" for name, mode in ((self.method, self.train), (method, train))
        ]
        return f"{names[0]} and {names[1]} compute something else in another order"

    def zeros(self) -> PyTree:
        """Its inputs, with zeros in the arrays."""
        return map_leaves(
            lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x,
            self.inputs,
        )


def as_inputs(values: PyTree, number: int | None = None) -> PyTree:
    """The inputs of a call, which are compared by the equations that compute them from here on.

    Args:
      values: arrays, in containers perhaps.
      number: of the call, where each call may have other inputs. None: all have the same.
    """
    label = "input" if number is None else _label(number)

    def named(x: Any) -> Any:
        is_array = _is_array(x) or isinstance(x, np.generic)
        return checkpoint_name(jnp.asarray(x), label) if is_array else x

    return map_leaves(named, values)


def _is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray) or (
        isinstance(x, jax.Array) and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)
    )


_Key = tuple[str, bool | None, bool]
"""Method, mode, and whether torch says that it compiles."""


class Calls:
    """The first calls of a module's methods, by the sizes and values of their inputs."""

    def __init__(self) -> None:
        self._seen: dict[_Key, dict[tuple, OtherCall]] = {}

    def others(self, key: _Key, inputs: PyTree, reason: str) -> list[OtherCall] | None:
        """The last calls with other inputs, and those of other methods and modes.

        Args:
          key: of the call.
          inputs: of the call.
          reason: the state that it leaves, "" for none. Calls count where they or it leave some.

        Returns:
          None if a call with such inputs was added, or as many as are compared.
        """
        seen = self._seen.get(key, {})
        if _abstract(inputs)[0] in seen or len(seen) >= _MOST_CALLS:
            return None
        _, train, compiling = key
        elsewhere = [
            list(calls.values())[-1]
            for (_, mode, compiles), calls in self._seen.items()
            if calls is not seen and compiles == compiling and (mode is None) == (train is None)
        ]
        alike, elsewhere = (
            [one for call in calls if (one := call._replace(reason=call.reason or reason)).reason]
            for calls in (seen.values(), elsewhere)
        )
        return alike[-_COMPARED:] + elsewhere

    def leave_state(self) -> bool:
        """Whether one of them leaves Python state."""
        return any(call.reason for calls in self._seen.values() for call in calls.values())

    def add(self, key: _Key, inputs: PyTree, reason: str) -> None:
        """Remembers a call; see `others`."""
        words, shapes = _abstract(inputs)
        method, train, _ = key
        self._seen.setdefault(key, {})[words] = OtherCall(method, train, shapes, reason)


def _abstract(inputs: PyTree) -> tuple[tuple, PyTree]:
    """Words that tell inputs apart, and the inputs with shapes and dtypes for arrays."""
    words = list[object]()

    def abstract(x: Any) -> Any:
        if _is_array(x):
            words.append((x.shape, str(x.dtype)))
            return jax.ShapeDtypeStruct(x.shape, x.dtype)
        words.append(repr(x) if isinstance(x, (bool, int, float, str, type(None))) else type(x))
        return x

    shapes = map_leaves(abstract, inputs)
    return tuple(words), shapes


def of_call(array: ArrayLike, number: int) -> jax.Array:
    """A parameter or buffer in the call of that number, where it may be another one."""
    return checkpoint_name(jnp.asarray(array), _label(number))


def _label(number: int) -> str:
    return f"{_OF_CALL} {number}"


def equal_calls(program: Callable[[], Sequence[Any]]) -> bool:
    """Whether several calls compute alike, each from its own inputs and tensors (`of_call`).

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
    parts = [slice(arrays[0] * i, arrays[0] * (i + 1)) for i in range(len(arrays))]

    def is_equal(computed: "_Computed") -> bool:
        calls = [computed.results(closed, number) for number in range(len(arrays))]
        return all(
            call[part] == calls[0][parts[0]] for call, part in zip(calls, parts, strict=True)
        )

    # Rows of a longer table are those of a shorter one, by other equations.
    return is_equal(_Computed()) or is_equal(_Computed(_Constants()))


class _Constants:
    """Values that follow from constants alone; those that are equal but for rounding are one."""

    def __init__(self) -> None:
        self._values: dict[int, np.ndarray] = {}
        self._like: dict[tuple, list[int]] = {}

    def number(self, value: Any, next_number: int) -> int:
        """The number of an equal value, or else this one, which the value gets."""
        array = np.asarray(value)
        like = self._like.setdefault((array.shape, array.dtype.str), [])
        for number in like:
            if _is_close(self._values[number], array):
                return number
        like.append(next_number)
        self._values[next_number] = array
        return next_number

    def results(self, jaxpr: Jaxpr, eqn: JaxprEqn, operands: Sequence[int]) -> list[Any] | None:
        """The results of an equation whose operands are all constants, and few."""
        sizes = [math.prod(v.aval.shape) for v in eqn.outvars if hasattr(v.aval, "shape")]
        is_named = eqn.primitive.name == "name"  # a parameter, buffer or input of a call
        if is_named or not all(n in self._values for n in operands) or sum(sizes) > _FOLDED:
            return None
        pairs = zip(eqn.invars, operands, strict=True)
        values = {v: self._values[n] for v, n in pairs if isinstance(v, Var)}
        alone = jaxpr.replace(constvars=[], invars=[*values], outvars=eqn.outvars, eqns=[eqn])
        with jax.ensure_compile_time_eval():
            return [*map(np.asarray, jaxpr_as_fun(ClosedJaxpr(alone, []))(*values.values()))]


def _is_close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind not in "fc":
        return np.array_equal(one, other)
    bound = 1e-6 * float(np.abs(one[np.isfinite(one)]).max(initial=0))
    return np.allclose(one, other, rtol=1e-5, atol=bound, equal_nan=True)


class _Computed:
    """Numbers for values; those that are computed alike have the same, in all calls.

    Args:
      constants: also compares what follows from constants, by its values.
    """

    def __init__(self, constants: _Constants | None = None) -> None:
        self._constants = constants
        self._known: dict[Any, int] = {}

    def _number(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))

    def _of_value(self, value: Any, key: Any) -> int:
        if self._constants is None or isinstance(key[1], int):  # an id: of a tracer, for example
            return self._number(key)
        return self._constants.number(value, self._number(("value", len(self._known))))

    def results(self, closed: ClosedJaxpr, call: int) -> list[int]:
        """A number for each result.

        Args:
          closed: the program of all calls.
          call: number of the call whose own arrays have the same numbers as those of other calls.
        """
        of_variable: dict[Var, int] = {}

        def operand(value: Any) -> int:
            if isinstance(value, Literal):
                return self._of_value(value.val, ("literal", str(value.val), str(value.aval)))
            return of_variable[value]

        for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            of_variable[variable] = self._of_value(value, ("constant", _digest(value)))
        for eqn in closed.jaxpr.eqns:
            operands = tuple(operand(v) for v in eqn.invars)
            values = (
                self._constants.results(closed.jaxpr, eqn, operands) if self._constants else None
            )
            key = (eqn.primitive.name, operands, _parameters(eqn.params, _label(call)))
            for i, variable in enumerate(eqn.outvars):
                of_variable[variable] = (
                    self._number((key, i))
                    if values is None
                    else self._of_value(values[i], ("", ""))
                )
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
