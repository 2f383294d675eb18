"""Starts a training run: joins its processes, compares them, claims the folder, and trains."""

import os
import re
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import metadata

import jax

import jaxsr
from jaxsr.data.processors import available_cpus
from jaxsr.data.sources import check_folder
from jaxsr.errors import InputError
from jaxsr.interop.agreement import check_alike, fail_together
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.checkpoint import steps_of
from jaxsr.interop.cpu_kernels.torch_calls import TORCH_THREADS
from jaxsr.interop.out_of_memory import naming_out_of_memory
from jaxsr.interop.plugin_start import check_profiler
from jaxsr.interop.sealed_json import short_digest
from jaxsr.models.code_digests import code_digests
from jaxsr.models.described_values import tensor_digest
from jaxsr.runtime.activity import is_quiet, set_status
from jaxsr.runtime.setup import own_modes, preserved_settings, setup_compute
from jaxsr.runtime.source_digest import source_digest
from jaxsr.runtime.xla_flags import without_ynn_flag
from jaxsr.training.config import RunConfig
from jaxsr.training.config_file import flat_options
from jaxsr.training.fine_tuning import prepare_network
from jaxsr.training.finished_run import Run
from jaxsr.training.loop import train
from jaxsr.training.run_folder import (
    RUNS,
    check_entries,
    choose_folder,
    claim_folder,
    clear_leftovers,
    make_folder,
)
from jaxsr.training.run_lock import lock_folder
from jaxsr.training.stop_signals import StopRequest
from jaxsr.training.task import Task
from jaxsr.training.task_run import TaskRun
from jaxsr.training.user_code import located_in_users_files

_PER_HOST = (
    "data",
    "val",
    "cache_gb",
    "scratch",
    "workers",
    "compile_cache",
    "aot",
    "aot_json",
    "aot_save",
)
"""Options that may differ between the processes of a job: the files themselves are compared."""

_one_run = threading.Lock()
"""Held by the process's only run: torch's random numbers, and Orbax's folders, are global."""
_SOURCES = ("jaxsr", "jaxsr.interop", "jaxsr.ops")


def start(name: str, kind: type[Task], config: RunConfig) -> Run:
    """Runs a task's training as one process, or as one process of a job.

    Args:
      name: name of the task.
      kind: its class.
      config: the run's configuration.

    Returns:
      The results of the run.

    Raises:
      UserError: the run cannot start, here or in another process of the job, or cannot go on.
    """
    if not _one_run.acquire(blocking=False):
        raise InputError(
            "another jaxsr.train runs in this process, and both would draw from its random "
            "numbers; call one after the other, or in processes of their own"
        )
    record = None
    set_status("checking the data")
    with ExitStack() as stack:
        stack.callback(_one_run.release)
        stack.enter_context(preserved_settings())
        stack.enter_context(own_modes())
        stopping = stack.enter_context(StopRequest())  # entered first, so closed last: signals do
        # not interrupt the final save
        with fail_together(at_end=stopping.listen):
            platform = setup_compute(
                config,
                jax_on_host=True,
                job=lambda: _facts(name, config),
                deterministic=config.deterministic,
            )
            if config.profile is not None:
                check_profiler(platform)
            out = choose_folder(config, name, jax.process_count())
            task = TaskRun(name, kind, config)  # checks the data before anything is computed
            goes_on = config.resume and bool(steps_of(out / "checkpoints"))
            remarks = prepare_network(task.network, task.config, has_weights=goes_on)
            code = code_digests(kind)
            facts: dict[str, Mapping[str, str]] = {"files": task.files(), "code": code}
            if jax.process_count() > 1:
                tensors = [*task.objective.named_parameters(), *task.objective.named_buffers()]
                facts["first weights"] = {
                    name: short_digest(tensor_digest(tensor).encode()) for name, tensor in tensors
                }
            check_alike(facts)
            if jax.process_index() == 0:
                if config.out is None:
                    out = make_folder(out)
                check_folder(out)
                stack.enter_context(lock_folder(out))
                check_entries(out, task.exported)
                clear_leftovers(out)
                record = claim_folder(
                    out,
                    config,
                    name,
                    files=task.files(),
                    cpu_threads=available_cpus(),
                    kernel_threads=TORCH_THREADS,
                    exported=task.exported,
                    computed_by={
                        "code": code,
                        "folders": task.folders(out, RUNS),
                        **_environment(platform),
                    },
                )
                if remarks and not is_quiet():
                    print(*remarks, sep="\n", flush=True)
        try:
            slices = config.mesh_shape.row_devices * config.accumulate
            with (
                located_in_users_files(),
                naming_out_of_memory(rows=config.batch, multiple=slices),
            ):
                return Run(out, train(task, out, record, stopping=stopping))
        except OSError as error:
            if error.filename is None and error.errno is not None:
                error.filename = str(out)  # a full stream does not know its file
            raise


_VARIABLES = re.compile(
    r"(JAX|XLA)_\w+|TF_(XLA|CUBLAS|CUDNN|DETERMINISTIC)\w*|LIBTPU_INIT_ARGS|JAXSR_CPU_KERNELS"
    r"|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|ATEN_CPU_CAPABILITY|MKL_CBWR"
    r"|(MKL|ONEDNN|DNNL)_\w*(FPMATH|ISA|INSTR)\w*"
)
"""Names of environment variables that may change the computation: all those of the compilers."""
_WITHOUT_EFFECT = re.compile(
    "ADDRESS|CACHE|CHECK|COORDINATOR|DEBUG|DEVICES|DUMP|EXPLAIN|FRAMES|GUARD|LEAK|LOCAL_DEVICE|LOG"
    "|MEM_FRACTION|PLATFORM|PPRINT|PREEMPTION|PROCESS|PROFILE|PYTHON_CLIENT|SOURCE|TIMEOUT"
    "|TRACEBACK|TRANSFER|VERBOS|WARN"
)
"""Parts of the names of others: where the job runs and what it reports, keeps or checks."""


def _environment(platform: str) -> dict[str, str]:
    """Variables that change results, without the flags that jaxsr itself adds to them.

    Args:
      platform: of the run; flags for GPUs count on CUDA alone.
    """
    without = ("--xla_dump",) if platform == "cuda" else ("--xla_dump", "--xla_gpu_")
    values = {
        name: value
        for name, value in {"XLA_FLAGS": "", **os.environ}.items()
        if _VARIABLES.fullmatch(name) and not _WITHOUT_EFFECT.search(name)
    }
    flags = [
        flag
        for flag in without_ynn_flag(values["XLA_FLAGS"]).split()
        if "platform_device_count" not in flag and not flag.startswith(without)
    ]
    return values | {"XLA_FLAGS": " ".join(flags)}


def _facts(name: str, config: RunConfig) -> dict[str, JsonObject]:
    """Facts that must be equal in every process of a job."""
    options = {n: v for n, v in flat_options(config).items() if n not in _PER_HOST}
    packages = ("jax", "jaxlib", "torch", "torchax", "numpy", "optax", "orbax-checkpoint", "pillow")
    versions = {package: metadata.version(package) for package in packages}
    versions |= {"jaxsr": jaxsr.__version__, "jaxsr's source files": source_digest(*_SOURCES)[:12]}
    return {
        "versions": versions,
        "options": {"family": name, **options},
        "environment variables": _environment("cuda"),
    }
