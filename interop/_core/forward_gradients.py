"""Gradients that the traced code itself takes: `torch.autograd.grad` in forward or in a loss.

Torch walks back the graph that led to a tensor; JAX differentiates functions. So a run whose code
requests a gradient is recorded first, as a JAX program in which each of those calls is an equation.
The run that counts then differentiates, at its n-th call, the recorded equations that lead from the
inputs to the outputs. The gradients are JAX values like any other, so they also have gradients.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun

from jaxsr.interop._core.index_bounds import collecting_indices
from jaxsr.interop._core.trace_scope import watched
from jaxsr.interop.errors import UnsupportedTorchError

Arrays = Sequence[jax.Array]
Values = dict[Var, jax.Array]

_GRADIENT = Primitive("torch_autograd_grad")
_GRADIENT.multiple_results = True


@_GRADIENT.def_abstract_eval
def _shapes(*operands: Any, outputs: int, batched: bool) -> list[Any]:
    rows = (operands[outputs].shape[0],) if batched else ()
    return [x.update(shape=(*rows, *x.shape)) for x in operands[2 * outputs :]]


class GradCall(NamedTuple):
    """A call of `torch.autograd.grad`."""

    outputs: Arrays
    cotangents: Arrays
    """For each output, the factor of its gradient."""
    inputs: Arrays
    batched: bool
    """Whether cotangents have a leading axis, over which the gradients are mapped."""


class Gradients:
    """Where the traced code gets its gradients from; here from nowhere."""

    recording = False

    def begin(self) -> None:
        """A run of the code starts."""

    def distinct(self, array: jax.Array) -> jax.Array:
        """The array of a new tensor; while recording no other tensor has the same one."""
        return array

    def compute(self, call: GradCall, *, allow_unused: bool) -> list[jax.Array | None]:
        """The gradients; None for an input that does not lead to an output.

        Args:
          call: of torch's function.
          allow_unused: whether the code may see that an input is unused.
        """
        raise UnsupportedTorchError(
            "torch.autograd.grad outside the methods of a converted module; convert a module "
            "that calls it"
        )


class GradientRequested(BaseException):
    """Unwinds a run that requests a gradient before it is recorded.

    No `except Exception` of its code stops it.
    """


class Unrecorded(Gradients):
    """For a run that is recorded only where its code requests a gradient."""

    requested = False

    def compute(self, call: GradCall, *, allow_unused: bool) -> list[jax.Array | None]:
        self.requested = True
        raise GradientRequested


class _Halted(BaseException):
    """Unwinds a recording that cannot go on."""


class _Recording(Gradients):
    """Records a run. It cannot know whether an input is unused.

    Where the code may see that, the recording halts. The equations so far then tell, and the next
    recording goes on from there.
    """

    recording = True

    def __init__(self) -> None:
        self._unused: dict[int, frozenset[int]] = {}
        """By number of the call, the inputs that are known to be unused."""
        self.begin()

    def begin(self) -> None:
        self._calls = 0
        self._arrays: dict[int, jax.Array] = {}
        self.results: list[jax.Array] = []

    def distinct(self, array: Any) -> jax.Array:
        array = array if isinstance(array, jax.Array) else array()
        array = jnp.copy(array) if id(array) in self._arrays else array
        self._arrays[id(array)] = array
        return array

    def compute(self, call: GradCall, *, allow_unused: bool) -> list[jax.Array | None]:
        number, self._calls = self._calls, self._calls + 1
        gradients = _GRADIENT.bind(
            *call.outputs,
            *call.cotangents,
            *call.inputs,
            outputs=len(call.outputs),
            batched=call.batched,
        )
        self.results += gradients
        if allow_unused and number not in self._unused:
            raise _Halted
        unused = self._unused.get(number, frozenset())
        return [None if i in unused else gradient for i, gradient in enumerate(gradients)]

    def learn_unused(self, so_far: "_Recorded") -> None:
        """Learns the unused arguments of the call at which it halted."""
        last = self._calls - 1
        self._unused[last] = so_far.unused_of(last)


class Sketched(_Recording):
    """For a program that is compared and never run: the equation of a call stands for itself."""

    def distinct(self, array: Any) -> jax.Array:
        return array

    def compute(self, call: GradCall, *, allow_unused: bool) -> list[jax.Array | None]:
        return super().compute(call, allow_unused=False)


class _Recorded(Gradients):
    def __init__(self, program: ClosedJaxpr) -> None:
        self._program = program
        self._eqns: list[JaxprEqn] = program.jaxpr.eqns
        self._makers = {var: i for i, eqn in enumerate(self._eqns) for var in eqn.outvars}
        self._known: Values = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        self._calls = [eqn for eqn in self._eqns if eqn.primitive is _GRADIENT]
        self._call = 0

    def begin(self) -> None:
        self._call = 0

    def compute(self, call: GradCall, *, allow_unused: bool) -> list[jax.Array | None]:
        number, self._call = self._call, self._call + 1
        eqn = self._calls[number]
        variables = eqn.invars[2 * len(call.outputs) :]
        known = self._known | {
            v: x for v, x in zip(variables, call.inputs, strict=True) if isinstance(v, Var)
        }
        gradients = self._gradients(eqn, known, call.cotangents)
        unused = self.unused_of(number)
        return [None if i in unused else gradient for i, gradient in enumerate(gradients)]

    def unused_of(self, number: int) -> frozenset[int]:
        """The inputs of a call that do not lead to its outputs."""
        eqn = self._calls[number]
        leading = self._leading_to(eqn.invars[: eqn.params["outputs"]])
        inputs = eqn.invars[2 * eqn.params["outputs"] :]
        return frozenset(i for i, v in enumerate(inputs) if v not in leading)

    def _gradients(
        self, eqn: JaxprEqn, known: Values, cotangents: Arrays | None = None
    ) -> list[jax.Array]:
        """The gradients for which the equation of a call stands.

        Args:
          eqn: of `_GRADIENT`.
          known: values that determine those of its operands; its inputs are among them.
          cotangents: where `known` does not determine them.
        """
        count = eqn.params["outputs"]
        outputs, inputs = eqn.invars[:count], eqn.invars[2 * count :]
        if cotangents is None:
            cotangents = self._values(eqn.invars[count : 2 * count], known)
        gradients: Values = {}
        leading = self._leading_to(outputs)
        used = (v for v in inputs if isinstance(v, Var) and v in leading)
        remaining = list(dict.fromkeys(used))
        while remaining:
            # An input that depends on another is computed from it, so that its share is counted.
            group = [v for v in remaining if self._leading_to([v]).isdisjoint({*remaining} - {v})]
            remaining = [v for v in remaining if v not in group]
            rest = {v: x for v, x in known.items() if v not in self._following(group)}

            def forward(*values: jax.Array) -> list[jax.Array]:
                return self._values(outputs, rest | dict(zip(group, values, strict=True)))  # noqa: B023

            _, pullback = jax.vjp(forward, *(known[v] for v in group))
            pull = jax.vmap(pullback) if eqn.params["batched"] else pullback
            gradients |= zip(group, pull(list(cotangents)), strict=True)
        return [
            gradients[v] if v in gradients else jnp.zeros(result.aval.shape, result.aval.dtype)
            for v, result in zip(inputs, eqn.outvars, strict=True)
        ]

    def _values(self, variables: Sequence[Any], known: Values) -> list[jax.Array]:
        """Values of variables by the equations that lead to them from known ones."""
        values, between = dict(known), list[JaxprEqn]()
        for i in sorted(self._needed(variables, known)):
            eqn = self._eqns[i]
            if eqn.primitive is not _GRADIENT:
                between.append(eqn)
                continue
            values |= self._results(between, values)
            between = []
            values |= zip(eqn.outvars, self._gradients(eqn, values), strict=True)
        values |= self._results(between, values)
        return [v.val if isinstance(v, Literal) else values[v] for v in variables]

    def _results(self, eqns: list[JaxprEqn], values: Values) -> Values:
        """The values that some equations give; no gradients flow through them."""
        if not eqns:
            return {}
        made = list(dict.fromkeys(v for eqn in eqns for v in eqn.outvars))
        read = {v: None for eqn in eqns for v in eqn.invars if isinstance(v, Var)}
        taken = [v for v in read if v in values]
        jaxpr = self._program.jaxpr.replace(constvars=[], invars=taken, outvars=made, eqns=eqns)
        results = jaxpr_as_fun(ClosedJaxpr(jaxpr, []))(*(values[v] for v in taken))
        return dict(zip(made, results, strict=True))

    def _needed(self, variables: Iterable[Any], known: Values) -> set[int]:
        """The equations between known values and variables."""
        needed: set[int] = set()
        pending = [v for v in variables if isinstance(v, Var)]
        while pending:
            variable = pending.pop()
            if variable in known or self._makers[variable] in needed:
                continue
            needed.add(self._makers[variable])
            pending += [v for v in self._eqns[self._makers[variable]].invars if isinstance(v, Var)]
        return needed

    def _leading_to(self, variables: Iterable[Any]) -> set[Var]:
        """The variables from which a gradient flows to one of these, and these."""
        leading: set[Var] = set()
        pending = [v for v in variables if isinstance(v, Var)]
        while pending:
            variable = pending.pop()
            if variable in leading or not jnp.issubdtype(variable.aval.dtype, jnp.inexact):
                continue
            leading.add(variable)
            if variable in self._makers:
                eqn = self._eqns[self._makers[variable]]
                if eqn.primitive.name != "stop_gradient":
                    pending += [v for v in eqn.invars if isinstance(v, Var)]
        return leading

    def _following(self, variables: Iterable[Var]) -> set[Var]:
        """The variables that depend on one of these, and these."""
        following = set(variables)
        for eqn in self._eqns:
            if any(isinstance(v, Var) and v in following for v in eqn.invars):
                following.update(eqn.outvars)
        return following


def recorded(run: Callable[[Gradients], object]) -> Gradients:
    """Records traced code that calls `torch.autograd.grad`.

    Args:
      run: runs the code with gradients from where it is told.

    Returns:
      Where the next run, of the same code on the same arrays, gets its gradients from.
    """
    recording = _Recording()
    while True:
        halted = False

        def program() -> list[jax.Array]:
            nonlocal halted
            try:
                run(recording)
            except _Halted:
                halted = True
            return recording.results

        with collecting_indices(), watched(None):
            result = _Recorded(jax.make_jaxpr(program)())
        if not halted:
            return result
        recording.learn_unused(result)
