"""A torch model as one file that runs without torch, compared with torch before it is kept.

from jax import export

program = export.deserialize(open("net.stablehlo", "rb").read())
program.call(images)  # one array, or a dictionary of arrays by the names of the outputs
"""

import contextlib
import importlib.util
import io
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
import torch
from jax import export
from torch import nn

import jaxsr
from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.check_command import load
from jaxsr.comparison.check_modes import TorchRuns
from jaxsr.comparison.export_options import LAST, PRODUCER, Device, ExportConfig
from jaxsr.comparison.jax_runs import JaxRuns
from jaxsr.comparison.measures import ArrayError
from jaxsr.comparison.workload_loader import has_random_weights
from jaxsr.errors import InputError, MissingKeyError, UserError, one_line
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.atomic_write import atomic_write, check_file
from jaxsr.interop.install import install_extra
from jaxsr.interop.isolated import isolated_command
from jaxsr.interop.torch_evaluation import evaluated, in_mode
from jaxsr.models.build import is_configuration
from jaxsr.models.registry import FAMILIES
from jaxsr.runtime.activity import set_status
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.xla_calls.calls import xla_only

Outputs = dict[str, np.ndarray] | list[np.ndarray]
"""By name, or in torch's order."""
_MOST_BYTES = 2**31 - 2**20
"""Largest program: `jax.export` writes FlatBuffers, whose places have 32 bits."""
_BUILT_IN = [export.DisabledSafetyCheck.custom_call("LayoutConstraint")]
"""Calls in programs of `jnp.fft` that are XLA's own, though `jax.export` doesn't list them. XLA
cannot refine their shapes where the batch is symbolic."""
_RUN = """
import sys
for name in ("torch", "torchax", "jaxsr"):
    sys.modules[name] = None
import jax.numpy as jnp, numpy as np
from jax import export
program = export.deserialize(open(sys.argv[1], "rb").read())
for source, target in zip(sys.argv[2::2], sys.argv[3::2]):
    arrays = np.load(source).values()
    arrays = [jnp.asarray(a, like.dtype) for a, like in zip(arrays, program.in_avals)]
    outputs = program.call(*arrays)
    outputs = outputs if isinstance(outputs, dict) else {"output": outputs}
    values = [a.astype("float32") if a.dtype == "bfloat16" else a for a in outputs.values()]
    np.savez(target, *values, names=[*outputs])
"""
"""Runs a file on batches in a process that can import neither torch nor jaxsr."""


def export_stablehlo(
    module: nn.Module,
    *inputs: PyTree,
    kwargs: dict[str, PyTree] | None = None,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    fixed_batch: bool = False,
) -> export.Exported:
    """A module in evaluation mode as a StableHLO program, its weights included.

        program = export_stablehlo(net, torch.zeros(1, 3, 64, 64))
        Path("net.stablehlo").write_bytes(program.serialize())

    Args:
      module: unchanged.
      *inputs: of its forward: tensors; other values become part of the program.
      kwargs: its keyword arguments, likewise.
      platforms: where the program runs: cpu, cuda, rocm, tpu.
      fixed_batch: keep the inputs' batch. Otherwise one sample is exported, for any number of them.

    Returns:
      A program of the tensors in their order, whose `call` gives an array, or a dictionary of
      arrays where the module returns several.

    Raises:
      InputError: an input or output has no batch axis, and the batch is not fixed; the module draws
        random numbers, or writes a buffer; a platform is unknown, or has no such operation.
      UnsupportedTorchError: the module cannot be converted.
    """
    _check_platforms(platforms)
    arguments = Arguments.of(inputs, kwargs or {})
    if not fixed_batch:
        arguments = _one_row(arguments)
    runs = JaxRuns(module, arguments)
    forward, by_rows = runs.forward(train=False), runs.by_rows()
    if not fixed_batch:
        _check_rows(runs)

    def run(*arrays: jax.Array) -> PyTree:
        values = dict(zip(arguments.tensors, arrays, strict=True))
        if fixed_batch:
            outputs = forward(runs.state, values, None)[0]
        else:
            outputs = {n: _of_row(n, v) for n, v in by_rows(runs.state, values, None).items()}
        return outputs["output"] if [*outputs] == ["output"] else outputs

    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in runs.inputs().values()]
    if not fixed_batch:
        (rows,) = export.symbolic_shape("b")
        shapes = [
            jax.ShapeDtypeStruct((rows, *s.shape[1:]), s.dtype) if s.shape else s for s in shapes
        ]
    try:
        with xla_only():  # a file has no functions of this process
            exporting = export.export(
                jax.jit(run),
                platforms=[*dict.fromkeys(platforms)],
                disabled_checks=_BUILT_IN if fixed_batch else (),
            )
            program = exporting(*shapes)
    except MissingKeyError as error:
        raise InputError(
            "the module draws random numbers in evaluation mode, and a file would give the same "
            "ones at each call; make them an input of forward"
        ) from error
    except (NotImplementedError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise InputError(
            f"jax.export cannot write the program for {', '.join(platforms)} "
            f"({one_line(error)[:300]}); give other platforms, or a fixed batch"
        ) from error
    if written := runs.converted.written:
        raise InputError(
            f"forward writes the buffer {min(written)} in evaluation mode, and a file would begin "
            "each call with the same value; make it an input and an output"
        )
    return program


def _check_platforms(platforms: Sequence[str]) -> None:
    """Refuses others than the command has: jax.export takes any name, and fails at the call."""
    known = get_args(Device)
    others = [] if isinstance(platforms, str) else [p for p in platforms if p not in known]
    if isinstance(platforms, str) or others or not platforms:
        got = repr(others[0]) if others else repr(platforms)
        raise InputError(f"platforms must be a list of {', '.join(known)}, got {got}")


def _one_row(arguments: Arguments) -> Arguments:
    if arguments.rows is None:
        raise InputError(
            f"the inputs share no batch axis ({arguments.describe()}); give --fixed-batch"
        )
    return arguments.row(0)


def _check_rows(runs: JaxRuns) -> None:
    """Refuses outputs whose first axis does not have a row for each sample."""
    twice, outputs = JaxRuns(runs.converted, runs.arguments.repeated(2)), {}
    with contextlib.suppress(Exception):  # batches of one are exported, and say what is wrong
        outputs = jax.eval_shape(twice.forward(train=False), twice.state, twice.inputs(), None)[0]
    for name, value in outputs.items():
        if value.shape[:1] != (2,):
            raise InputError(
                f"{name} has shape {value.shape} for a batch of 2, so that its first axis has no "
                "row for each sample; give --fixed-batch"
            )


def _of_row(name: str, value: jax.Array) -> jax.Array:
    """An output of a batch of one, for each sample, as that of the batch."""
    if value.shape[1:2] != (1,):
        raise InputError(
            f"{name} has shape {value.shape[1:]} for a batch of 1, so that it is not a value of "
            "each sample; give --fixed-batch"
        )
    return value[:, 0]


def run(config: ExportConfig) -> int:
    """Exports the model; returns the exit status."""
    jax.config.update("jax_platforms", "cpu")
    warnings.simplefilter("ignore")  # of the user's libraries and of torch's exporter
    check_file(config.out)
    set_status(f"loading {config.model}")
    _check_weights(config)
    loaded, (args, kwargs) = load(config, perturbed=False)
    arguments = Arguments.of(args, kwargs)
    batches = [arguments] if config.fixed_batch else [arguments, _one_row(arguments)]
    references = [_reference(loaded.network, batch, config) for batch in batches]
    if not config.fixed_batch:
        references.append(_reference_of_two(loaded.network, arguments, config))
        batches.append(references[-1].arguments)
    write = {"stablehlo": _write_stablehlo, "onnx": _write_onnx}[config.file_format]
    run_file = {"stablehlo": _run_stablehlo, "onnx": _run_onnx}[config.file_format]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / config.out.name
        set_status(f"writing {config.model} as {config.file_format}")
        signature = write(loaded.network, arguments, config, path)
        set_status("running the file without torch")
        worst = _judged(references, run_file(path, batches))
        if not worst.ok:
            print(
                f"jaxsr: the file gives other values than torch: {worst.name} differs by "
                f"{worst.error:.1e} of its largest value, torch in float32 by "
                f"{worst.torch_error:.1e}; it was not kept. --fixed-batch is for samples that "
                "depend on one another; random numbers must be inputs",
                file=sys.stderr,
            )
            return ExitStatus.FAILED
        atomic_write(config.out, path.read_bytes())
    print(
        f"{config.out}: {config.file_format}, {config.out.stat().st_size / 1e6:,.3g} MB; "
        f"{signature}\n"
        f"run without torch and jaxsr, it differs from float64 by at most {worst.error:.1e} of an "
        f"output's largest value; torch in float32 by {worst.torch_error:.1e}"
    )
    return ExitStatus.OK


def _check_weights(config: ExportConfig) -> None:
    """Refuses a folder whose weights would be left out; says where a file gives none."""
    model = str(config.model)
    if config.weights is not None:
        return
    if is_configuration(model):
        folder = Path(model).parent if Path(model).is_file() else model
        raise InputError(f"--model {model} alone has random weights; add --weights {folder}")
    if has_random_weights(config) or model in FAMILIES:
        print(
            f"note: {model}: the weights are those that its own code makes, random ones in most "
            "cases; --weights FILE has others"
        )


def _reference(module: nn.Module, arguments: Arguments, config: ExportConfig) -> TorchRuns:
    """Torch's results, in float32 and float64."""
    try:
        return TorchRuns.of(
            module, arguments, train=False, key=jax.random.key(0), differentiate=False
        )
    except Exception as error:
        end = "" if config.fixed_batch else "; --fixed-batch keeps the inputs as they are"
        raise InputError(
            f"{config.model} fails in torch on {arguments.describe()} ({type(error).__name__}: "
            f"{one_line(error)}){end}"
        ) from error


def _reference_of_two(module: nn.Module, arguments: Arguments, config: ExportConfig) -> TorchRuns:
    """The results of twice the batch, whose second half has other values.

    Equal samples would not show that they depend on one another: their mean is each of them. Where
    torch refuses the values, the batch is repeated.
    """
    generator = torch.Generator().manual_seed(0)

    def with_others(tensor: torch.Tensor) -> torch.Tensor:
        # Drawn from the tensor's own, so that indices and masks stay such.
        places = torch.randint(max(tensor.numel(), 1), tensor.shape, generator=generator)
        return torch.cat([tensor, tensor.flatten()[places]])

    try:
        return _reference(module, arguments.batched(with_others), config)
    except InputError:
        return _reference(module, arguments.repeated(2), config)


def _judged(references: Sequence[TorchRuns], outputs: Sequence[Outputs]) -> ArrayError:
    """The error that is furthest beyond its bound."""
    errors: list[ArrayError] = []
    for runs, results in zip(references, outputs, strict=True):
        named = isinstance(results, dict)
        arrays = results if named else dict(zip(runs.single.outputs, results, strict=True))
        errors += runs.errors("outputs", arrays)
    return max(errors, key=lambda error: error.ratio)


def _write_stablehlo(
    module: nn.Module, arguments: Arguments, config: ExportConfig, path: Path
) -> str:
    size = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
    if size > _MOST_BYTES:
        raise InputError(
            f"{config.model} has {size / 1e9:.1f} GB of weights, and a file of jax.export holds "
            "2 GB; give a smaller model"
        )
    args, kwargs = arguments.call({})
    program = export_stablehlo(
        module, *args, kwargs=kwargs, platforms=config.platforms, fixed_batch=config.fixed_batch
    )
    path.write_bytes(program.serialize() + LAST)
    names = (
        f"{n} {a.str_short()}" for n, a in zip(arguments.tensors, program.in_avals, strict=True)
    )
    return f"{', '.join(names)}; for {', '.join(program.platforms)}"


def _run_stablehlo(path: Path, batches: Sequence[Arguments]) -> list[Outputs]:
    files: list[Path] = []
    for number, arguments in enumerate(batches):
        files += [path.with_name(f"{kind}{number}.npz") for kind in ("in", "out")]
        np.savez(files[-2], *(_writable(array) for array in arguments.arrays.values()))
    done = subprocess.run(
        [*isolated_command(_RUN), str(path), *map(str, files)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        reason = " ".join(done.stderr.split())[-300:]
        end = "install that again" if "No module named" in reason else "please report it"
        raise InputError(f"the file cannot be run without torch ({reason}); {end}")
    results = [dict(np.load(file)) for file in files[1::2]]
    return [dict(zip(arrays.pop("names"), arrays.values(), strict=True)) for arrays in results]


def _writable(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _write_onnx(module: nn.Module, arguments: Arguments, config: ExportConfig, path: Path) -> str:
    for library in ("onnxscript", "onnxruntime"):
        if importlib.util.find_spec(library) is None:
            raise InputError(f"{library} is not installed; {install_extra('onnx')}")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    batch = {0: torch.export.Dim("batch")}
    axes = {n: batch if t.ndim else {} for n, t in arguments.tensors.items()}
    dynamic, keywords = arguments.call(axes)
    args, kwargs = arguments.call({})
    try:
        silent = io.StringIO()
        with redirect_stdout(silent), redirect_stderr(silent), evaluated(module):
            program: Any = torch.onnx.export(
                in_mode(module), args, kwargs=kwargs, dynamo=True, verbose=False,
                dynamic_shapes=None if config.fixed_batch else (*dynamic, *keywords.values()),
            )  # fmt: skip
            program.model.producer_name = PRODUCER
            program.model.producer_version = jaxsr.__version__
            program.save(str(path), external_data=False)
    except Exception as error:
        if isinstance(error, UserError):
            raise
        reason = one_line(error.__cause__ or error)[:300]  # torch's own is a page of advice
        raise InputError(
            f"torch cannot export {config.model} to ONNX ({reason}); --format stablehlo may"
        ) from error
    return arguments.describe(batch=None if config.fixed_batch else "batch")


def _run_onnx(path: Path, batches: Sequence[Arguments]) -> list[Outputs]:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        feeds = [dict(zip(names, a.arrays.values(), strict=True)) for a in batches]
        return [[np.asarray(value) for value in session.run(None, feed)] for feed in feeds]
    except Exception as error:  # onnxruntime's have no class in common
        raise InputError(
            f"onnxruntime cannot run the file, which was not kept ({one_line(error)[:300]}); let "
            "the network compute in float32, or give --format stablehlo"
        ) from error
