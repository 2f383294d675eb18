"""`jaxsr.check(module, *inputs)`: does a torch module compute the same in JAX?"""

import contextlib
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.check_fault import find_fault, module_errors
from jaxsr.comparison.check_modes import (
    ModeRows,
    TorchRuns,
    attempt,
    compare_mode,
    cotangents,
    judged,
)
from jaxsr.comparison.check_result import CheckResult, CheckRow, Speed, skipped
from jaxsr.comparison.further_calls import compare_calls
from jaxsr.comparison.jax_runs import JaxRuns, Program, to_host
from jaxsr.comparison.measures import ILL_CONDITIONED_ULPS
from jaxsr.comparison.torch_runs import (
    RunResult,
    moved,
    perturbed,
    run_torch,
    steps_per_second,
    torch_step,
)
from jaxsr.errors import InputError, one_line
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.folding.policy import LaneFolding
from jaxsr.interop.mesh import platform_name
from jaxsr.interop.mode_methods import FunctionMode, Options
from jaxsr.interop.module import check_is_module
from jaxsr.interop.module_copy import copy_module

_MOST_ROWS = 4
"""Samples that `vmap` is checked on."""


@torch.enable_grad()
def check(
    module: nn.Module,
    *inputs: PyTree,
    kwargs: Mapping[str, PyTree] | None = None,
    name: str | None = None,
    train: bool = True,
    gradients: bool = True,
    vmap: bool = True,
    mesh: int = 2,
    speed_s: float = 0.5,
    modules: bool = False,
    lane_folding: LaneFolding | None = None,
) -> CheckResult:
    """Compares a torch module with its conversion to JAX, with float64 torch as the referee.

    Products are computed in float32 (`jax.default_matmul_precision("highest")`) on JAX's default
    device; torch computes on the CPU.

    Args:
      module: on any device, in either mode; unchanged.
      *inputs: arguments of its forward: tensors, NumPy arrays, or pytrees of them.
      kwargs: keyword arguments of its forward.
      name: what the report calls it. Default: the class's name.
      train: also check training mode.
      gradients: also check gradients of parameters and inputs.
      vmap: also check `jax.vmap` over the batch.
      mesh: also check a mesh of so many devices; 1 skips that.
      speed_s: seconds of timing for each program and engine. 0 measures no times, and compares the
        outputs of the gradient's program.
      modules: record the error of every submodule.
      lane_folding: check the program that `to_jax` makes with it.

    Returns:
      The result: `ok`, its rows, costs, and the first wrong submodule where one differs.

    Raises:
      InputError: torch itself cannot run the module on these inputs.
    """
    check_is_module(module, "check")
    if any(t.device.type != "cpu" for t in (*module.parameters(), *module.buffers())):
        module = copy_module(module).cpu()
    arguments = Arguments.of(inputs, kwargs or {})
    kind = type(module).__name__
    key = jax.random.key(0)
    result = CheckResult(
        name=name or kind,
        kind=kind,
        parameters=sum(p.numel() for p in module.parameters()),
        inputs=arguments.describe(),
        platform=platform_name(jax.default_backend()),
    )
    try:
        evaluated = TorchRuns.of(module, arguments, train=False, key=key, differentiate=gradients)
    except Exception as error:
        raise InputError(
            f"torch cannot run {result.name} on {result.inputs or 'no inputs'}: "
            f"{type(error).__name__}: {one_line(error)}; give other inputs"
        ) from error
    result.referee = evaluated.referee
    with jax.default_matmul_precision("highest"):
        _Check(result, module, arguments, evaluated, lane_folding).run(
            train=train, vmap=vmap, mesh=mesh, speed_s=speed_s, modules=modules
        )
    return result


class _Check:
    """One run of `check`, which fills a result."""

    def __init__(
        self,
        result: CheckResult,
        module: nn.Module,
        arguments: Arguments,
        evaluated: TorchRuns,
        lane_folding: LaneFolding | None,
    ) -> None:
        self.result, self.module, self.arguments = result, module, arguments
        self.evaluated = evaluated
        self.key = evaluated.key
        self.lane_folding = lane_folding
        self.jax: JaxRuns
        self.gradients: dict[bool, Program] = {}
        """Gradients in evaluation and in training, where they were computed."""

    def run(self, *, train: bool, vmap: bool, mesh: int, speed_s: float, modules: bool) -> None:
        """Everything, in the order of the page."""
        rows = self.result.rows

        def convert() -> CheckRow:
            self.jax = self._converted(self.module, self.arguments)
            return CheckRow(name="convert", status="ok")

        converted = attempt("convert", convert)
        if converted.status != "ok":
            rows.append(converted)
            return
        mode = self._compare(self.evaluated, separate=speed_s > 0)
        rows += mode.rows
        if not mode.computed:
            return
        rows.append(attempt("jit of apply", self._jit))
        rows += self._calls(self.evaluated, mode, mode)
        if train:
            rows += self._train(mode, separate=speed_s > 0)
        if vmap:
            rows.append(attempt("vmap", self._vmap, required=False))
        if mesh > 1:
            rows.append(attempt(f"mesh of {mesh}", lambda: self._mesh(mesh), required=False))
        self._time(mode, speed_s)
        self._explain(modules)

    def _converted(self, module: nn.Module, arguments: Arguments) -> JaxRuns:
        return JaxRuns(module, arguments, lane_folding=self.lane_folding)

    def _compare(self, torch_runs: TorchRuns, *, prefix: str = "", separate: bool) -> ModeRows:
        mode = compare_mode(self.jax, torch_runs, prefix=prefix, separate=separate)
        if mode.gradient is not None:
            self.gradients[torch_runs.train] = mode.gradient
        return mode

    def _train(self, evaluation: ModeRows, *, separate: bool) -> list[CheckRow]:
        # A result with a gradient in training only, such as forces with a graph, is tried again.
        differentiate = self.evaluated.differentiate or bool(self.evaluated.undifferentiable)
        try:
            trained = TorchRuns.of(
                self.module, self.arguments, train=True, key=self.key, differentiate=differentiate
            )
        except Exception as error:
            detail = f"torch fails in training mode: {type(error).__name__}: {one_line(error)}"
            return [skipped("train", detail)]
        if _same_bits(trained.single.arrays, self.evaluated.single.arrays):
            return [skipped("train", "torch computes the same bits as in evaluation")]
        mode = self._compare(trained, prefix="train ", separate=separate)
        if mode.computed:
            mode.rows += self._calls(trained, mode, evaluation)
        draws = trained.single.draws
        if draws and mode.computed:
            outputs = (trained.single.outputs, self.evaluated.single.outputs)
            is_seen = not _same_bits(*outputs)
            mode.rows.append(
                attempt("random key", lambda: self._random_key(mode.forward, draws, is_seen))
            )
        return mode.rows

    def _calls(self, torch_runs: TorchRuns, mode: ModeRows, evaluation: ModeRows) -> list[CheckRow]:
        """Further calls; and a seed of the module's own, which calls do not show."""
        name = "train calls" if torch_runs.train else "calls"
        if torch_runs.single.is_seeded:
            detail = "the module seeds torch's generator, whose numbers JAX does not draw"
            return [CheckRow(name=name, status="differs", detail=detail)]
        return [attempt(name, lambda: compare_calls(self.jax, torch_runs, mode, evaluation))]

    def _random_key(self, program: Program | None, draws: int, is_seen: bool) -> CheckRow:
        """Whether a key decides. Behind weights of zero, as LoRA's, outputs show no draw."""
        inputs = self.jax.inputs()
        program = program or Program(
            self.jax.forward(train=True), (self.jax.state, inputs, self.key)
        )
        first, repeated = to_host(program()), to_host(program())
        other = to_host(program(self.jax.state, inputs, jax.random.key(1)))
        same, changed = _same_bits(first, repeated), not _same_bits(first, other)
        detail = f"{draws} draws, for which torch got the same numbers; "
        detail += "the same key repeats every bit" if same else "the same key gives other bits"
        detail += ", another key does not" if changed else ", and so does another key"
        detail += "" if is_seen else " (in torch no output depends on them)"
        is_ok = same and changed == is_seen
        return CheckRow(name="random key", status="ok" if is_ok else "differs", detail=detail)

    def _jit(self) -> CheckRow:
        """`jax.jit(module.apply)` as users write it: its outputs have to be pytrees."""
        args, kwargs = self.arguments.call(self.jax.inputs())
        static = [v for v in (*args, *kwargs.values()) if isinstance(v, (bool, str))]
        if static:
            return skipped("jit of apply", "some arguments are not arrays")
        jax.eval_shape(self.jax.converted.apply, *self.jax.state, *args, rng=self.key, **kwargs)
        return CheckRow(name="jit of apply", status="ok")

    def _vmap(self) -> CheckRow:
        if self.arguments.rows is None:
            return skipped("vmap", "the inputs share no batch axis")
        batch = self.arguments.batched(lambda t: t[:_MOST_ROWS])
        rows = TorchRuns.of(self.module, batch, train=False, key=self.key, run=_run_rows)
        arrays = to_host(self.jax.per_row(batch)())
        return judged("vmap", rows.errors("outputs", arrays), required=False)

    def _mesh(self, devices: int) -> CheckRow:
        name = f"mesh of {devices}"
        available = len(jax.devices())
        if available < devices:
            return skipped(name, f"JAX has {available} device here")
        batch, torch_runs = self.arguments, self.evaluated
        if batch.rows is None:
            return skipped(name, "the inputs share no batch axis")
        if batch.rows % devices:
            batch = batch.repeated(devices // math.gcd(batch.rows, devices))
            torch_runs = TorchRuns.of(self.module, batch, train=False, key=self.key)
        outputs = to_host(self.jax.on_mesh(batch, devices)()[0])
        return judged(name, torch_runs.errors("outputs", outputs), required=False)

    def _time(self, mode: ModeRows, budget_s: float) -> None:
        for name, program in (("forward", mode.forward), ("gradient", mode.gradient)):
            differentiate = name == "gradient"
            if program is None or (differentiate and not self.jax.converted.params):
                continue
            speed = Speed(program=name, trace_s=program.trace_s, compile_s=program.compile_s)
            if budget_s > 0:
                step = torch_step(self.module, self.arguments, differentiate=differentiate)
                speed = replace(
                    speed,
                    steps_per_s=steps_per_second(program, budget_s=budget_s),
                    torch_steps_per_s=steps_per_second(step, budget_s=budget_s),
                )
            self.result.speeds.append(speed)

    def _explain(self, modules: bool) -> None:
        """The first wrong submodule, and those that amplify rounding."""
        result = self.result
        result.notes += [
            f"{name}: {count} of {array.size} values are NaN in torch as well: these inputs say "
            "nothing of them"
            for name, array in self.evaluated.single.outputs.items()
            if array.dtype.kind in "fc" and (count := int(np.isnan(array).sum()))
        ]
        differing = [r for r in result.rows if r.status == "differs" and r.worst is not None]
        blamed = next((r for r in differing if r.name.split()[-1] in _BISECTED), None)
        if blamed is not None:
            train = blamed.name.startswith("train")
            result.fault = find_fault(
                self.module, self.arguments, blamed, train=train, lane_folding=self.lane_folding
            )
        if blamed is not None and blamed.name == "forward":
            result.notes += [note for note, context in _OTHERWISE if self._differs_under(context)]
        if blamed is not None and blamed.name.split()[-1] == "gradient":
            train = blamed.name.startswith("train")
            if any(
                self._gradient_agrees_nearby(seed, train=train) for seed in range(_NEARBY_TRIES)
            ):
                result.notes.append(_KINK)
        worst = max(
            (one for row in result.rows for one in row.arrays if row.name == "forward"),
            key=lambda one: one.condition,
            default=None,
        )
        ill = worst is not None and worst.condition > ILL_CONDITIONED_ULPS
        if modules or ill or differing:
            try:
                result.modules = module_errors(
                    self.module,
                    self.arguments,
                    has_referee=result.referee == "float64",
                    lane_folding=self.lane_folding,
                )
            except Exception as error:
                result.notes.append(
                    f"submodules were not recorded: {type(error).__name__}: {one_line(error)}"
                )
        if ill and worst is not None:
            largest = max(result.modules, key=lambda one: one.amplification, default=None)
            where = (
                f"; {largest.path or 'the module itself'} ({largest.kind}) amplifies it most, "
                f"{largest.amplification:.0f} times"
                if largest is not None
                else ""
            )
            result.notes.append(
                f"ill-conditioned: {worst.name} of float32 torch is {worst.condition:.0f} steps of "
                f"float32 from float64{where}"
            )

    def _gradient_agrees_nearby(self, seed: int, *, train: bool) -> bool:
        """Whether gradients agree with weights and floating inputs moved a little."""
        program = self.gradients[train]
        generator = torch.Generator().manual_seed(seed)
        floats = {n: t for n, t in self.arguments.tensors.items() if t.is_floating_point()}
        nearby = self.arguments.replaced(
            {n: moved(t, generator, by=_NEARBY) for n, t in floats.items()}
        )
        module = perturbed(self.module, seed, double=False, by=_NEARBY)
        try:
            runs = TorchRuns.of(module, nearby, train=train, key=self.key, differentiate=True)
            near = self._converted(module, nearby)
            *_, gradients = to_host(
                program(near.state, near.inputs(), near.key, cotangents(runs.single))
            )
        except Exception:
            return False
        return all(one.ok for one in runs.errors("gradients", gradients))

    def _differs_under(self, context: Callable[[], AbstractContextManager[object]]) -> bool:
        """Whether torch itself gives other outputs within a context."""

        def run(module: nn.Module, *args: PyTree, **kwargs: PyTree) -> PyTree:
            with context():
                return module(*args, **kwargs)

        try:
            other = run_torch(self.module, self.arguments, key=self.key, method=run)
        except Exception:
            return False
        return not all(one.ok for one in self.evaluated.errors("outputs", other.outputs))


@contextlib.contextmanager
def _compiling() -> Generator[None]:
    before = torch.compiler.is_compiling()
    torch.compiler._is_compiling_flag = True  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before  # pyright: ignore[reportPrivateUsage]


class _StableSorts(FunctionMode):
    """`torch.sort` and its like keep the order of equal elements, as JAX's do, and `topk` takes the
    first of them."""

    def call(self, func: Callable, args: tuple, kwargs: Options) -> Any:
        if func in (torch.sort, torch.argsort, torch.Tensor.sort, torch.Tensor.argsort):
            kwargs |= dict(zip(("dim", "descending"), args[1:], strict=False)) | {"stable": True}
            args = args[:1]
        if func in (torch.topk, torch.Tensor.topk):
            return _first_topk(*args, **kwargs)
        return func(*args, **kwargs)


def _first_topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> torch.return_types.topk:
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


_OTHERWISE: tuple[tuple[str, Callable[[], AbstractContextManager[object]]], ...] = (
    (
        "torch computes otherwise, too, while torch.compiler.is_compiling() is true, as it is "
        "while JAX traces: the module's library takes another branch then",
        _compiling,
    ),
    (
        "torch computes otherwise, too, with stable sorts, as JAX's are: the module depends on the "
        "order in which torch.sort or torch.topk leaves equal elements; a sort has stable=True",
        _StableSorts,
    ),
)
"""Why torch and JAX may both be right, and the setting that makes torch agree."""


_NEARBY = 2.0**-10
_NEARBY_TRIES = 3
"""Trials: in a large network some unit may lie at its kink each time."""
_KINK = (
    "with weights and inputs moved by a thousandth the gradients agree: these lie at a kink (of "
    "relu, abs, max, a sort), where rounding decides which of two slopes is taken"
)

_BISECTED = ("forward", "gradient", "buffers")


def _run_rows(module: nn.Module, batch: Arguments, **options: Any) -> RunResult:
    """Outputs of each sample alone, stacked; the options are those of `run_torch`."""
    runs = [run_torch(module, batch.row(k), **options).outputs for k in range(batch.rows or 0)]
    return RunResult(outputs={name: np.stack([run[name] for run in runs]) for name in runs[0]})


def _same_bits(first: PyTree, second: PyTree) -> bool:
    leaves = [[leaf.tobytes() for leaf in jax.tree.leaves(tree)] for tree in (first, second)]
    return jax.tree.structure(first) == jax.tree.structure(second) and leaves[0] == leaves[1]
