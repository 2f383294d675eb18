"""`jaxsr compare ops`, `trace`, `traces` and `engines`: options, files and exit status."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import tyro

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.ops_options import OpsOptions
from jaxsr.comparison.workload_options import WorkloadOptions
from jaxsr.errors import InputError
from jaxsr.folders import cache_folder
from jaxsr.runtime.activity import set_status
from jaxsr.runtime.cli import parse_options
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.runtime.options import Engine
from jaxsr.runtime.setup import configure_jax, share_gpu_memory

if TYPE_CHECKING:
    from jaxsr.comparison.result import Comparison

_TRACE = ("trace.json", "tensors.safetensors")
"""Files of `jaxsr.comparison.trace_file`, whose import loads torch."""
_REPORT = ("comparison.json", "comparison.html", "suspects.safetensors")


@dataclass(frozen=True, kw_only=True)
class TraceOptions(BackendSpec, WorkloadOptions):
    """One run to record."""

    granularity: Literal["module", "operation"] = "operation"
    """operation: record every torch function. module: record the outputs of every module."""
    alone: bool = False
    """In JAX, run each operation separately instead of the compiled program."""
    keep: tuple[str, ...] = ()
    """Patterns of module:operation whose tensors are stored whole: model.layers.3.*:*."""
    tokens_of: Path | None = None
    """Feed the tokens of this trace instead of the greedy ones, so that both stay comparable."""
    out: Path = Path("runs/trace")
    """Folder for the trace."""

    def __post_init__(self) -> None:
        BackendSpec.__post_init__(self)
        WorkloadOptions.__post_init__(self)
        if self.alone:
            self.check_operations_alone()

    def side(self) -> BackendSpec:
        """Engine, place, dtype and precision."""
        return BackendSpec(**{f.name: getattr(self, f.name) for f in fields(BackendSpec)})


@dataclass(frozen=True, kw_only=True)
class EnginesOptions(WorkloadOptions):
    """Two runs to compare."""

    a: str = "torch,platform=cpu"
    """First side: torch or jax, then dtype=, platform=, precision= as needed; or the folder of a
    trace with whole tensors (trace --keep '*'), for example from another machine."""
    b: str = "jax"
    """Second side."""
    model_b: str | None = None
    """Another model for the second side, of the same family and sizes. Quantised weights of
    language models are compared by the values that they represent. Default: the same model."""
    quantize_b: Literal["int8", "int4"] | None = None
    """Quantise the weights of the second side's language model."""
    reference: bool = False
    """Also run torch in float64, which shows the more accurate side."""
    within: str = ""
    """Compute local errors only inside this module."""
    gradients: bool = False
    """Also compare the gradients of every operation, and those of the whole step with float64's."""
    train: bool = False
    """Use training mode: batch statistics, and the same random numbers on both sides."""
    save_traces: bool = False
    """Store both traces, in the folders first and second."""
    out: Path = Path("runs/compare-engines")
    """Folder for comparison.json, comparison.html and the suspects' tensors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_stored:
            BackendSpec.parse(self.a).check_operations_alone()
        elif self.gradients or self.train or (self.model_b, self.quantize_b) != (None, None):
            raise InputError(
                "a stored trace has neither gradients, training nor another model; leave "
                "--gradients, --train, --model-b and --quantize-b out, or run both sides"
            )
        BackendSpec.parse(self.b)

    @property
    def is_stored(self) -> bool:
        """Whether the first side is a trace."""
        return Path(self.a).is_dir() and self.a not in get_args(Engine)


@dataclass(frozen=True, kw_only=True)
class TracesOptions:
    """Two recorded runs to compare."""

    folders: tyro.conf.Positional[tuple[Path, Path]]
    """Folders of the two traces, such as runs/trace and runs/trace-tpu."""
    out: Path = Path("runs/compare-traces")
    """Folder for comparison.json and comparison.html."""


def trace(arguments: list[str]) -> int:
    """Record a run by module and operation: shapes, dtypes, statistics, chosen tensors."""
    options: TraceOptions = _parse(TraceOptions, arguments, trace)
    with _results(options.out, _TRACE):
        return _trace(options)


def _trace(options: TraceOptions) -> int:
    _prepare([options.side()])
    from jaxsr.comparison.compare_traces import check_comparable
    from jaxsr.comparison.recorded_trace import make_trace, open_backend
    from jaxsr.comparison.trace_file import load_trace, save_trace
    from jaxsr.comparison.workload_loader import load_workload

    source = None if options.tokens_of is None else load_trace(options.tokens_of)
    workload = load_workload(options)
    if source is not None:
        names = (str(options.tokens_of), str(options.model))
        check_comparable(source.header, workload.header(), names=names)
        if not source.tokens:
            raise InputError(
                f"tokens_of={options.tokens_of} has no tokens, as its network chooses none; leave "
                "--tokens-of out"
            )
    _say_weights(options)
    recorded = make_trace(
        workload,
        open_backend(workload, options.side()),
        granularity=options.granularity,
        alone=options.alone,
        keep=options.keep,
        forced=None if source is None else source.tokens,
        progress=_progress,
    )
    with _results(options.out, _TRACE, made=True):
        save_trace(recorded, options.out)
    stored = sum(bool(record.tensors) for record in recorded.records)
    print(
        f"{recorded.name} on {recorded.header['device']}: {len(recorded.records)} operations in "
        f"{len(recorded.outputs)} steps, {stored} of them whole; {recorded.header['recorder']}"
    )
    if options.keep and not stored:
        raise InputError(
            f"keep={' '.join(options.keep)!r} matches no module:operation of this run; the trace "
            f"at {options.out} has their names"
        )
    print(f"wrote {options.out}")
    return ExitStatus.OK


def traces(arguments: list[str]) -> int:
    """Compare two recorded runs: total errors, the first operation that differs, tokens."""
    options: TracesOptions = _parse(TracesOptions, arguments, traces)
    from jaxsr.comparison.compare_traces import check_comparable, compare_traces
    from jaxsr.comparison.trace_file import load_trace

    with _results(options.out, _REPORT):
        first, second = options.folders
        pair = load_trace(first), load_trace(second)
        check_comparable(pair[0].header, pair[1].header, names=(str(first), str(second)))
        comparison = compare_traces(*pair, progress=_progress)
        with _results(options.out, _REPORT, made=True):
            return _report(comparison, options.out)


def engines(arguments: list[str]) -> int:
    """Run two engines side by side: total and local error of every operation, tokens."""
    options: EnginesOptions = _parse(EnginesOptions, arguments, engines)
    with _results(options.out, _results_of(options)):
        return _engines(options)


def _results_of(options: EnginesOptions) -> list[str]:
    stored = [f"{side}/{name}" for side in ("first", "second") for name in _TRACE]
    return [*_REPORT, *(stored if options.save_traces else ())]


def _engines(options: EnginesOptions) -> int:
    second = BackendSpec.parse(options.b)
    live = [] if options.is_stored else [BackendSpec.parse(options.a)]
    _prepare([*live, second])
    from jaxsr.comparison.compare_engines import compare_engines
    from jaxsr.comparison.compare_traces import check_comparable
    from jaxsr.comparison.recorded_trace import RecordedTrace
    from jaxsr.comparison.trace_file import load_trace, save_trace
    from jaxsr.comparison.workload_loader import load_workload
    from jaxsr.models.llama.quantized import dequantize, quantize

    first = live[0] if live else load_trace(Path(options.a))
    workload = replace(load_workload(options), train=options.train)
    workload.network.requires_grad_(options.gradients)
    _say_weights(options)
    if isinstance(first, RecordedTrace):
        names = (options.a, str(options.model))
        check_comparable(first.header, workload.header(), names=names)
    other = None
    if (options.model_b, options.quantize_b) != (None, None):
        other = load_workload(replace(options, model=options.model_b or options.model))
        other = replace(other, train=options.train)
        if options.quantize_b is not None:
            quantize(other.network, options.quantize_b)
            other = replace(other, model=f"{other.model} in {options.quantize_b}")
        if other.identity() != workload.identity():
            dequantize(other.network)
        if other.identity() != workload.identity():
            raise InputError(
                f"model_b={options.model_b} has other parameters or takes other inputs than "
                f"{options.model}; the two must share names and shapes"
            )
    comparison, *recorded = compare_engines(
        workload,
        first,
        second,
        other=other,
        reference=options.reference,
        within=options.within,
        gradients=options.gradients,
        progress=_progress,
    )
    with _results(options.out, _results_of(options), made=True):
        for name, one in zip(("first", "second"), recorded, strict=True):
            if options.save_traces and one is not first:
                save_trace(one, options.out / name)
        return _report(comparison, options.out)


def ops(arguments: list[str]) -> None:
    """`jaxsr compare ops`."""
    options = parse_options(OpsOptions, arguments, prog="python -m jaxsr.compare ops")
    from jaxsr.comparison.ops_command import compare

    compare(options)


def _parse(kind: Any, arguments: list[str], command: Callable[[list[str]], int]) -> Any:
    prog = f"python -m jaxsr.compare {command.__name__}"
    return parse_options(kind, arguments, prog=prog, description=command.__doc__)


def _prepare(sides: Sequence[BackendSpec]) -> None:
    """Sets up JAX for the process."""
    import jax

    from jaxsr.interop.mesh import select_platform
    from jaxsr.interop.plugin_start import skip_library_check

    if any(side.engine == "torch" for side in sides):
        share_gpu_memory()
    set_status("loading the model")
    configure_jax(cache_folder() / "compiled")
    platforms = [side.platform for side in sides if side.engine == "jax"]
    if "auto" in platforms:
        select_platform("auto")
    else:
        skip_library_check()
        # The CPU as well: host arrays live there, and two sides may be two platforms.
        jax.config.update("jax_platforms", ",".join(dict.fromkeys((*platforms, "cpu"))))


def _results(
    out: Path, names: Sequence[str], *, made: bool = False
) -> AbstractContextManager[None]:
    """Holds the folder of the results. Unless it is `made` here, one that is absent stays so.

    Raises:
      InputError: it is that of a run or a model, which tensors would make ambiguous.
    """
    from jaxsr.data.result_folder import result_folder
    from jaxsr.data.sources import check_folder

    if (out / "config.json").is_file():
        raise InputError(f"{out} is the folder of a run or a model; choose another --out")
    if made or out.exists():
        return result_folder(out, names)
    check_folder(next(folder for folder in out.absolute().parents if folder.exists()))
    return nullcontext()


def _say_weights(options: WorkloadOptions) -> None:
    from jaxsr.comparison.workload_loader import has_random_weights

    if has_random_weights(options):
        _progress(f"{options.model}: random weights; --weights FILE has others")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _report(comparison: "Comparison", out: Path) -> int:
    from safetensors.numpy import save

    from jaxsr.comparison.comparison_report import as_json, report_of
    from jaxsr.comparison.report import html_page, print_report
    from jaxsr.comparison.trace_file import plain
    from jaxsr.interop.atomic_write import atomic_write

    words = {**comparison.first["words"], **comparison.second["words"]}

    def word(token: int) -> str:
        return words.get(str(token), str(token))

    report = report_of(comparison, word=word)
    print_report(report)
    content = json.dumps(as_json(comparison), indent=1, ensure_ascii=False, allow_nan=False)
    atomic_write(out / "comparison.json", f"{content}\n".encode())
    atomic_write(out / "comparison.html", html_page(report).encode())
    written = ["comparison.json", "comparison.html"]
    suspects = {
        f"step{row.step}/{row.call.key}/{name}": plain(array)
        for row in comparison.rows
        if row.local is not None
        for name, array in row.local.tensors.items()
    }
    if suspects:
        atomic_write(out / "suspects.safetensors", save(suspects))
        written.append("suspects.safetensors")
    else:  # an earlier comparison's
        (out / "suspects.safetensors").unlink(missing_ok=True)
    print(f"wrote {out}: {', '.join(written)}")
    return ExitStatus.OK if comparison.agree else ExitStatus.FAILED
