"""One mode of a module, torch against JAX: outputs, gradients and buffers with their errors."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.check_result import CheckRow
from jaxsr.comparison.jax_runs import JaxRuns, Program, as_run, to_host
from jaxsr.comparison.measures import (
    FLOOR_ULPS,
    LEAST_SCALE,
    ULP,
    ArrayError,
    compare_arrays,
    distances,
)
from jaxsr.comparison.torch_runs import RunResult, cotangent, moved, perturbed, run_torch
from jaxsr.errors import UserError, one_line

_GROUPS = ("outputs", "gradients", "buffers")
_NOISE_SEEDS = (1, 2)


@dataclass(kw_only=True)
class TorchRuns:
    """One mode of a module in torch: float32, the referee, and the noise of one rounding."""

    module: nn.Module
    arguments: Arguments
    train: bool
    differentiate: bool
    key: jax.Array
    single: RunResult
    exact: RunResult
    referee: str
    undifferentiable: str = ""
    """Why torch cannot compute gradients, though it can run forward."""
    _run: Callable[..., RunResult] = run_torch
    _noise: dict[str, dict[str, float]] | None = None

    @classmethod
    def of(
        cls,
        module: nn.Module,
        arguments: Arguments,
        *,
        train: bool,
        key: jax.Array,
        differentiate: bool = False,
        run: Callable[..., RunResult] = run_torch,
    ) -> "TorchRuns":
        """Runs it in both precisions.

        Args:
          module, arguments, train, key, differentiate: of the run.
          run: called as `run_torch` is, for results of more than one forward.

        Raises:
          Whatever the module raises in float32. If it fails in float64 alone, the float32 run is
          the referee, and the noise bounds JAX's error.
        """
        options = {"train": train, "key": key, "differentiate": differentiate}
        undifferentiable = ""
        try:
            single = run(module, arguments, **options)
        except Exception as error:
            if not differentiate:
                raise
            options["differentiate"] = False
            single = run(module, arguments, **options)
            undifferentiable = f"{type(error).__name__}: {one_line(error)}"
        exact, referee = single, "float64"
        try:
            double = run(module, arguments, double=True, **options)
            if all(double.outputs[n].shape == a.shape for n, a in single.outputs.items()):
                exact = double
            else:
                referee = "float32: shapes differ in float64"
        except Exception as error:
            referee = f"float32: float64 fails with {type(error).__name__}"
        return cls(
            module=module, arguments=arguments, train=train, key=key, single=single, exact=exact,
            differentiate=options["differentiate"], undifferentiable=undifferentiable,
            referee=referee, _run=run,
        )  # fmt: skip

    @property
    def noise(self) -> dict[str, dict[str, float]]:
        """By group and array: how far the referee moves when weights and inputs are rounded."""
        if self._noise is None:
            self._noise = {group: {} for group in _GROUPS}
            double = self.referee == "float64"
            for seed in _NOISE_SEEDS:
                generator = torch.Generator().manual_seed(seed)
                inputs = {
                    n: moved(t.double() if double else t, generator)
                    for n, t in self.arguments.tensors.items()
                    if t.is_floating_point()
                }
                near = self._run(
                    perturbed(self.module, seed, double=double),
                    self.arguments.replaced(inputs),
                    double=double,
                    train=self.train,
                    key=self.key,
                    differentiate=self.differentiate,
                )
                for group in _GROUPS:
                    distance = distances(getattr(self.exact, group), getattr(near, group))
                    noise = self._noise[group]
                    # An infinite distance, as near a pole, would excuse any error.
                    finite = {n: v for n, v in distance.items() if math.isfinite(v)}
                    noise |= {n: max(v, noise.get(n, 0.0)) for n, v in finite.items()}
        return self._noise

    def errors(
        self,
        group: str,
        arrays: Mapping[str, np.ndarray],
        *,
        rounding: float = FLOOR_ULPS * ULP,
        least_scale: float = LEAST_SCALE,
    ) -> tuple[ArrayError, ...]:
        """The errors of a group of JAX's arrays.

        The noise is computed only where torch's error alone does not explain an error.

        Args:
          group: outputs, gradients or buffers.
          arrays: by name.
          rounding, least_scale: see `compare_arrays`.
        """
        single, exact = getattr(self.single, group), getattr(self.exact, group)
        if group == "buffers":
            # A cache that took the input's size in torch keeps its own in JAX.
            exact = {n: a for n, a in exact.items() if n in arrays and a.shape == arrays[n].shape}
            exact = {n: a for n, a in exact.items() if n in single}
        compare = partial(
            compare_arrays, arrays, single, exact, rounding=rounding, least_scale=least_scale,
            related=group == "gradients",
        )  # fmt: skip
        errors = compare()
        if not all(one.ok for one in errors):
            errors = compare(noise=self.noise[group])
        return tuple(errors)


def attempt(name: str, check: Callable[[], CheckRow], *, required: bool = True) -> CheckRow:
    """The row that `check` returns; its errors become rows, too."""
    try:
        return check()
    except UserError as error:
        return CheckRow(name=name, status="refused", detail=one_line(error), required=required)
    except Exception as error:
        detail = f"{type(error).__name__}: {one_line(error)}"
        return CheckRow(name=name, status="failed", detail=detail, required=required)


def judged(name: str, errors: Iterable[ArrayError], **fields: Any) -> CheckRow:
    """A row of errors: ok where all are within their bounds."""
    arrays = tuple(errors)
    status = "ok" if all(one.ok for one in arrays) else "differs"
    return CheckRow(name=name, status=status, arrays=arrays, **fields)


@dataclass(kw_only=True)
class ModeRows:
    """The rows of one mode, and the programs that computed them."""

    rows: list[CheckRow]
    forward: Program | None = None
    """None if the gradient's program also computed the outputs."""
    gradient: Program | None = None

    @property
    def computed(self) -> bool:
        """Whether JAX computed the outputs."""
        return self.forward is not None or self.gradient is not None


def compare_mode(
    jax_runs: JaxRuns, torch_runs: TorchRuns, *, prefix: str = "", separate: bool = True
) -> ModeRows:
    """Forward, gradient and buffers of one mode.

    Args:
      jax_runs: the converted module.
      torch_runs: the same mode in torch.
      prefix: of the rows' names.
      separate: also compile forward alone. Otherwise outputs and buffers are those of the
        gradient's program where there is one.
    """
    train = torch_runs.train
    result = ModeRows(rows=[])
    arguments = (jax_runs.state, jax_runs.inputs(), jax_runs.key)
    forward_rows: list[CheckRow] = []
    gradient_rows: list[CheckRow] = []
    buffer_rows: list[CheckRow] = []

    def compare_forward(outputs: dict[str, np.ndarray], buffers: dict[str, np.ndarray]) -> CheckRow:
        run = as_run(outputs, buffers)
        errors = torch_runs.errors("buffers", run.buffers)
        if errors:
            buffer_rows.append(judged(f"{prefix}buffers", errors))
        errors = torch_runs.errors("outputs", run.outputs)
        if not errors:
            detail = "forward returns no tensor to compare; check a module that returns its tensors"
            return CheckRow(name=f"{prefix}forward", status="failed", detail=detail)
        return judged(f"{prefix}forward", errors)

    def forward() -> CheckRow:
        program = Program(jax_runs.forward(train=train), arguments)
        row = compare_forward(*program())
        result.forward = program
        return row

    def gradient() -> CheckRow:
        program = Program(
            jax_runs.gradient(train=train), (*arguments, cotangents(torch_runs.single))
        )
        outputs, buffers, gradients = to_host(program())
        if not forward_rows:
            forward_rows.append(compare_forward(outputs, buffers))
        result.gradient = program
        return judged(f"{prefix}gradient", torch_runs.errors("gradients", gradients))

    differentiable = torch_runs.differentiate and bool(torch_runs.single.differentiable)
    if differentiable and not separate:
        gradient_rows.append(attempt(f"{prefix}gradient", gradient))
    if not forward_rows:
        forward_rows.append(attempt(f"{prefix}forward", forward))
    has_outputs = forward_rows[0].status in ("ok", "differs")
    if differentiable and separate and has_outputs:
        gradient_rows.append(attempt(f"{prefix}gradient", gradient))
    elif (
        not differentiable
        and has_outputs
        and (torch_runs.differentiate or torch_runs.undifferentiable)
    ):
        detail = "no output depends on a floating parameter or input in torch"
        if torch_runs.undifferentiable:
            detail = f"torch cannot differentiate it: {torch_runs.undifferentiable}"
        gradient_rows.append(CheckRow(name=f"{prefix}gradient", status="skipped", detail=detail))
    result.rows = forward_rows + (gradient_rows if has_outputs else []) + buffer_rows
    return result


def cotangents(run: RunResult) -> dict[str, jax.Array]:
    """Factors in the loss of a run's outputs that have a gradient."""
    return {n: jnp.asarray(cotangent(n, run.outputs[n].shape)) for n in run.differentiable}
