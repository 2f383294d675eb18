"""Whether samples of an operator are right in JAX: against float64 torch, or by what defines them.

Results that are not unique are replaced by what defines them: for a factorisation its product and
its factors' orthogonality, for an index among equal elements the element. Everything is then held
to the bound of `jaxsr.comparison.measures`. A sample that needs 64-bit numbers, as its refusal
says, runs in JAX's x64 mode.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.comparison.check_modes import TorchRuns
from jaxsr.comparison.jax_runs import JaxRuns, as_run
from jaxsr.comparison.measures import FLOOR_ULPS, MOST, ULP, ArrayError, compare_arrays
from jaxsr.comparison.torch_runs import cotangent
from jaxsr.errors import UserError, one_line
from jaxsr.interop._core.dtypes import constant_to_numpy, x64
from tests.oracles.messages import NEEDS_X64, without_folders
from tests.oracles.operators.draws import differing_draws, unseeded
from tests.oracles.operators.forms import DRAWN_OTHERWISE, FACTORISATIONS, FORMS, uninitialised
from tests.oracles.operators.samples import Sample, check_layouts, samples

CHUNK = 32
"""Samples whose programs are compiled as one."""
ROUNDING = {"bfloat16": 2 * 2.0**-7, "float32 rounded": 2e-4, "float32 slopes": 2e-4}
"""Always allowed, relative to the largest value: two steps of the dtype. Float32 has the bound of
`jaxsr.comparison.measures`; but where samples are rounded noise is no excuse, for it moves them off
the places that are looked at."""
ROUNDING_64 = 4096 * 2.0**-52
"""Bound for results in float64, with torch's as the referee: float32's own step is 131,072 times as
much."""
_NARROWED = {"int64": "int32", "uint64": "uint32", "float32": "bfloat16"}


@dataclasses.dataclass(kw_only=True)
class Verdict:
    """Verdict on one sample."""

    status: str
    """right, refused, wrong, or torch fails."""
    reason: str = ""
    gradient: bool = False
    """Whether gradients were compared too."""
    x64: bool = False
    """Whether it ran in JAX's x64 mode, as a refusal asked."""


@dataclasses.dataclass(kw_only=True)
class _Traced:
    """A sample's program."""

    name: str
    sample: Sample
    runs: TorchRuns
    jaxpr: Any
    arguments: list[Any]
    result: Any
    """The tree of its results."""
    gradient: bool
    rounding: float
    has_noise: bool
    is_slope: bool

    def function(self, arguments: list[Any]) -> list[Any]:
        return jax.core.eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *arguments)


def judge(name: str, dtype: str) -> Iterator[Verdict]:
    """Verdicts on all samples of an operator; of a random one, also on its distribution."""
    wide: list[Sample] = []
    with unseeded():
        yield from _judged(name, dtype, samples(name, dtype), wide)
        with jax.enable_x64(True):
            verdicts = [*_judged(name, dtype, wide)]
    yield from (dataclasses.replace(verdict, x64=True) for verdict in verdicts)


def _judged(
    name: str, dtype: str, of: Iterable[Sample], needing_x64: list[Sample] | None = None
) -> Iterator[Verdict]:
    """Verdicts on samples, but for those that go to a list because they need x64 mode."""
    chunk: list[_Traced] = []
    drawing: list[Sample] = []
    for sample in of:
        if name in DRAWN_OTHERWISE:
            sample.differentiate = False
        try:
            traced = _trace(name, dtype, sample)
        except UserError as error:
            if needing_x64 is not None and NEEDS_X64.search(str(error)):
                needing_x64.append(sample)
            else:
                yield Verdict(status="refused", reason=_reason(error))
        except Exception as error:
            yield Verdict(status="wrong", reason=f"{type(error).__name__}: {_reason(error)}")
        else:
            if isinstance(traced, Verdict):
                yield traced
                continue
            chunk.append(traced)
            if (traced.runs.single.draws and not drawing) or name in DRAWN_OTHERWISE:
                drawing.append(sample)
        if len(chunk) == CHUNK:
            yield from _run(chunk)
            chunk = []
    yield from _run(chunk)
    for sample in drawing if name not in FACTORISATIONS else []:
        difference = differing_draws(sample)
        yield Verdict(status="wrong" if difference else "right", reason=difference)


def _reason(error: Exception) -> str:
    text = one_line(error)
    # What `to_jax` says of the place is the same for all samples.
    return without_folders(text.partition("` on ")[2].partition(": ")[2] or text)[:300]


def _trace(name: str, dtype: str, sample: Sample) -> "_Traced | Verdict":
    check_layouts(sample.arguments)
    key = jax.random.key(0)
    try:
        runs = TorchRuns.of(
            sample.module, sample.arguments, train=False, key=key,
            differentiate=sample.differentiate,
        )  # fmt: skip
    except Exception as error:
        return _without_torch(sample, error)
    jax_runs = JaxRuns(sample.module, sample.arguments)
    inputs = {
        n: jnp.asarray(constant_to_numpy(t, "an input"))
        for n, t in sample.arguments.tensors.items()
    }
    arguments: tuple[Any, ...] = (jax_runs.state, inputs, key)
    gradient = bool(runs.single.differentiable)
    if gradient:
        cotangents = {
            n: jnp.asarray(cotangent(n, runs.single.outputs[n].shape))
            for n in runs.single.differentiable
        }
        arguments = (*arguments, cotangents)
    function = (jax_runs.gradient if gradient else jax_runs.forward)(train=False)
    jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    is_slope = dtype == "float32 slopes"
    return _Traced(
        name="" if is_slope else name, sample=sample, runs=runs, jaxpr=jaxpr,
        arguments=jax.tree.leaves(arguments), result=jax.tree.structure(result),
        gradient=gradient, rounding=ROUNDING.get(dtype, FLOOR_ULPS * ULP),
        has_noise=not sample.rounded, is_slope=is_slope,
    )  # fmt: skip


def _without_torch(sample: Sample, error: Exception) -> Verdict:
    """Where torch's results are not arrays, as sparse tensors are, JAX has to refuse.

    Torch fails on a copy, too, where a sample reads memory beside its input, which no array has.
    """
    reason = f"{type(error).__name__}: {_reason(error)}"
    try:
        sample.module(*sample.arguments.tensors.values())
    except Exception:
        return Verdict(status="torch fails", reason=reason)
    jax_runs = JaxRuns(sample.module, sample.arguments)
    try:
        jax.make_jaxpr(jax_runs.forward(train=False))(
            jax_runs.state, jax_runs.inputs(), jax.random.key(0)
        )
    except RuntimeError as of_jax:
        if one_line(error)[:40] not in one_line(of_jax):
            raise
        return Verdict(status="refused", reason=f"as torch does a copy of the input: {reason}")
    return Verdict(status="wrong", reason=f"torch's result cannot be compared: {reason}")


def _run(chunk: list[_Traced]) -> Iterator[Verdict]:
    """Runs a chunk as one program; one that fails, or is not right, alone and optimised."""
    # Programs are tiny: what takes time is optimising them.
    try:
        results = _compiled(chunk, xla_backend_optimization_level=0)
    except Exception:
        results = [None] * len(chunk)
    for traced, result in zip(chunk, results, strict=True):
        try:
            verdict = None if result is None else _compare(traced, result)
            if verdict is None or verdict.status == "wrong":
                # Sums of programs that are not optimised run in order, and round more.
                verdict = _compare(traced, _compiled([traced])[0])
        except Exception as error:
            verdict = Verdict(status="wrong", reason=f"{type(error).__name__}: {_reason(error)}")
        yield verdict


def _compiled(chunk: list[_Traced], **options: Any) -> list[list[np.ndarray]]:
    def joined(arguments: list[list[Any]]) -> list[list[Any]]:
        return [t.function(a) for t, a in zip(chunk, arguments, strict=True)]

    arguments = [traced.arguments for traced in chunk]
    program = jax.jit(joined).lower(arguments).compile(compiler_options=options or None)
    return jax.tree.map(np.asarray, program(arguments))


def _compare(traced: _Traced, leaves: list[np.ndarray]) -> Verdict:
    run = as_run(*jax.tree.unflatten(traced.result, leaves))
    runs = traced.runs
    for name, array in runs.single.outputs.items():
        dtype = str(run.outputs[name].dtype) if name in run.outputs else "nothing"
        if dtype not in (str(array.dtype), _NARROWED.get(str(array.dtype))):
            return Verdict(status="wrong", reason=f"{name} is {dtype}, torch {array.dtype}")
    errors = [("", _wide_errors(traced, run.outputs)), ("", _output_errors(traced, run.outputs))]
    if traced.gradient:
        gradients = _errors(traced, "gradients", run.gradients)
        errors.append(("gradient ", gradients))
    for kind, of_arrays in errors:
        for one in of_arrays:
            if not one.ok:
                name = f"{kind}{one.name.removeprefix('∂ ')}"
                reason = f"{name} is off by {one.error:.2g}, torch by {one.torch_error:.2g}"
                # Of such a sample float32 says nothing, whoever computes it.
                undecided = one.error < math.inf and one.torch_error > MOST
                return Verdict(status="torch fails" if undecided else "wrong", reason=reason)
    return Verdict(status="right", gradient=traced.gradient)


def _errors(traced: _Traced, group: str, arrays: dict[str, np.ndarray]) -> Sequence[ArrayError]:
    runs = traced.runs
    single, exact = getattr(runs.single, group), getattr(runs.exact, group)
    finite = {n: np.isfinite(a) for n, a in exact.items()}
    has_pole = traced.is_slope and not all(a.all() for a in finite.values())
    if traced.has_noise and not has_pole:
        return runs.errors(group, arrays, rounding=traced.rounding)
    if has_pole:  # there each library has infinities and NaN of its own
        arrays, single, exact = (
            {n: np.where(finite.get(n, True), a, 0) for n, a in run.items()}
            for run in (arrays, single, exact)
        )
    return compare_arrays(arrays, single, exact, rounding=traced.rounding)


def _wide_errors(traced: _Traced, outputs: dict[str, np.ndarray]) -> Sequence[ArrayError]:
    """Errors of results in float64, which both compute from the same inputs."""
    single = traced.runs.single.outputs
    if traced.name in FORMS or traced.runs.single.draws:
        return []
    names = [n for n, a in single.items() if a.dtype in (np.float64, np.complex128)]
    arrays = [{n: run[n] for n in names} for run in (outputs, single)]
    return compare_arrays(arrays[0], arrays[1], arrays[1], rounding=ROUNDING_64)


def _output_errors(traced: _Traced, outputs: dict[str, np.ndarray]) -> Sequence[ArrayError]:
    runs = traced.runs
    form = FORMS.get(traced.name)
    if runs.single.draws and x64():
        # Other numbers: torch was given those of 32 bits. Their distribution is compared.
        form = uninitialised
    if form is None:
        return _errors(traced, "outputs", outputs)
    args, kwargs = traced.sample.values()
    forms = []
    for run in (outputs, runs.single.outputs, runs.exact.outputs):
        graded = {n: a for n, a in run.items() if n.startswith("graded")}
        results = {n: a for n, a in run.items() if n not in graded}
        graded = {} if traced.name in DRAWN_OTHERWISE else graded
        forms.append(form(args, kwargs, results) | graded)
    return compare_arrays(*forms, rounding=traced.rounding)
