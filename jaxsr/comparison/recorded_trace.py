"""A trace: one recorded run of a workload, with all that is needed to compare it."""

import contextlib
import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.op_recorder import Granularity, Record
from jaxsr.comparison.statistics import SAMPLE, Figures, describe
from jaxsr.comparison.workload import LanguageWorkload, Workload
from jaxsr.interop.annotations import JsonObject, PyTree

if TYPE_CHECKING:
    from jaxsr.comparison.jax_backend import JaxBackend
    from jaxsr.comparison.torch_backend import TorchBackend

Backend: TypeAlias = "TorchBackend | JaxBackend"
"""A workload's network on an engine."""

Progress = Callable[[str], None]

FORMAT = 2
"""Version of trace files; another number is refused."""


class Weight(NamedTuple):
    """A parameter or buffer as a side holds it."""

    digest: str
    """Digest of the bytes."""
    figures: Figures
    dtype: str = ""
    """Empty in traces of 0.3 and before."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedTrace:
    """A recorded run."""

    header: JsonObject
    """Workload, side, versions, device, precision, and the recorder's effect."""
    records: list[Record] = field(repr=False)
    """In order of execution, step after step."""
    outputs: list[np.ndarray] = field(repr=False)
    """Each step's image or logits, whole."""
    further: dict[str, np.ndarray] | None = field(default=None, repr=False)
    """The other arrays that a network that runs once returns; None in traces of 0.3 and before."""
    tokens: list[int]
    """Tokens fed after each step; empty if the network chooses no tokens."""
    weights: dict[str, Weight] = field(repr=False)
    """Every parameter and buffer."""

    @property
    def name(self) -> str:
        """For headings."""
        return str(self.header["side_short"])

    def of_step(self, step: int) -> list[Record]:
        """One step's records."""
        return [record for record in self.records if record.call.step == step]


def open_backend(workload: Workload, side: BackendSpec) -> Backend:
    """The workload's network on that side, with its weights in place."""
    if side.engine == "torch":
        from jaxsr.comparison.torch_backend import TorchBackend

        return TorchBackend(workload, side)
    from jaxsr.comparison.jax_backend import JaxBackend

    return JaxBackend(workload, side)


def make_trace(
    workload: Workload,
    runner: Backend,
    *,
    granularity: Granularity = "operation",
    alone: bool = False,
    keep: Sequence[str] = (),
    forced: Sequence[int] | None = None,
    check: bool = True,
    progress: Progress = lambda text: None,
) -> RecordedTrace:
    """Runs the workload and records it.

    Args:
      workload: the model and its inputs.
      runner: where.
      granularity: record every operation, or the outputs of every module.
      alone: in JAX, run each operation by itself instead of the program that users run.
      keep: `fnmatch` patterns of `path:operation` whose tensors are stored whole.
      forced: tokens to feed instead of the greedy ones, those of another run.
      check: run also without the recorder (torch, which has no other program then, in two steps
        only), note in the header whether the results are equal to the bit, and go on with these.
      progress: called with a line on each stage.

    Raises:
      InputError: a token of the prompt or of `forced` is not in the vocabulary.
    """
    workload.check_tokens(forced or ())
    rollout = workload.begin()
    records: list[Record] = []
    outputs: list[np.ndarray] = []
    recorder_errors: list[float] = []
    while (inputs := rollout.inputs()) is not None:
        step = len(outputs)
        progress(f"{runner.side.short}: step {step + 1} of {workload.steps}")
        result, step_records = runner.record(
            inputs, step=step, granularity=granularity, keep=keep, alone=alone
        )
        if check and not alone and (runner.fused or step < 2):
            plain = runner.run(inputs)
            recorder_errors.append(_difference(workload, plain, result))
            result = plain
        records += step_records
        token = None if forced is None or step >= len(forced) else forced[step]
        outputs.append(rollout.take(result, token))
    header = {
        "format": FORMAT,
        **workload.header(),
        "side": str(runner.side),
        "side_short": runner.side.short,
        **runner.describe(),
        "granularity": granularity,
        "sample": SAMPLE,
        "versions": versions(),
        "machine": platform.machine(),
        "tokens_forced": forced is not None,
        "words": _words(workload, rollout.tokens, outputs),
        "recorder": _recorder_note(recorder_errors, runner),
        "recorder_difference": max(recorder_errors, default=None),
    }
    if alone and runner.fused:
        header["computed"] = "operation by operation, each compiled alone; not the fused program"
    return RecordedTrace(
        header=header,
        records=records,
        outputs=outputs,
        further=rollout.further,
        tokens=rollout.tokens,
        weights=_weights(workload, runner),
    )


def _words(workload: Workload, tokens: list[int], outputs: list[np.ndarray]) -> dict[str, str]:
    """Text of the tokens that a report may name."""
    if not isinstance(workload, LanguageWorkload):
        return {}
    named = {*tokens, *(int(logits[0].argmax()) for logits in outputs)}
    return {str(token): workload.word(token) for token in sorted(named)}


def _difference(workload: Workload, plain: PyTree, recorded: PyTree) -> float:
    """Largest change that recording made to the compared outputs; 0 if bit-identical."""
    pairs = zip(_compared(workload, plain), _compared(workload, recorded), strict=True)
    changes = [
        0.0 if np.array_equal(a, b, equal_nan=True) else np.max(np.abs(a - b)) for a, b in pairs
    ]
    return float(np.max(changes))


def _compared(workload: Workload, outputs: PyTree) -> list[np.ndarray]:
    rollout = workload.begin()
    first = rollout.take(outputs)
    return [np.asarray(array, np.float64) for array in (first, *rollout.further.values())]


def _recorder_note(recorder_errors: list[float], runner: Backend) -> str:
    if runner.inconsistent:
        return "programs that record different tensors gave different results"
    if not recorder_errors:
        return "not compared with a run without the recorder"
    if max(recorder_errors) == 0:
        return "results are equal to the bit with and without the recorder"
    return (
        "results are those without the recorder; the program that records is compiled otherwise "
        f"and its results differ from them by up to {max(recorder_errors):.3g}"
    )


def _weights(workload: Workload, runner: Backend) -> dict[str, Weight]:
    network, weights = workload.network, {}
    for name, _ in (*network.named_parameters(), *network.named_buffers()):
        array = runner.weight(name)
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        weights[name] = Weight(digest, describe(array), array.dtype.name)
    return weights


def versions() -> dict[str, str]:
    """Versions of the libraries that compute."""
    numbers = {"python": platform.python_version()}
    for name in ("jaxsr-torchax", "torch", "jax", "jaxlib", "torchax", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            numbers[name] = metadata.version(name)
    return numbers
