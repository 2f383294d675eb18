"""PyTorch vision and language code, run natively on JAX.

- `jaxsr.to_jax(module)`: a torch module as a pure JAX function (`jaxsr.interop`)
- `jaxsr.ops.resize(images, size)`: image kernels
- `jaxsr.check(module, inputs)`: does it compute the same in JAX?
- `jaxsr.restore(images, model)`: images through a network
- `jaxsr.export_stablehlo(module, inputs)`: a program that runs without torch
- `jaxsr.Task`: training of your own, for `python -m jaxsr.train`

Each is loaded when it is used.
Importing this package touches no device. It changes one thing outside: a flag is added to
`XLA_FLAGS`, because XLA miscompiles CPU programs without it (`jaxsr.runtime.xla_flags`).
"""

import sys


def _is_run_as_module() -> bool:
    """Whether Python is at `python -m jaxsr.COMMAND`, or at `-mjaxsr.COMMAND`."""
    words = sys.orig_argv
    pairs = zip(words, [*words[1:], ""], strict=True)
    named = (word.removeprefix("-m") or after for word, after in pairs if word.startswith("-m"))
    return sys.argv[:1] == ["-m"] and next(named, "").partition(".")[0] == "jaxsr"


if _is_run_as_module() and not sys.flags.safe_path:
    # Python looks there first, and would run a stranger's json.py. Where a command names code of
    # the current folder, `jaxsr.models.build.import_attribute` adds it again.
    del sys.path[0]

from typing import TYPE_CHECKING  # noqa: E402

from jaxsr.runtime.xla_flags import disable_ynn_fusion  # noqa: E402

if TYPE_CHECKING:
    from jaxsr.comparison.check_module import check as check
    from jaxsr.comparison.exporting import export_stablehlo as export_stablehlo
    from jaxsr.interop.module import to_jax as to_jax
    from jaxsr.restore import restore as restore
    from jaxsr.train import train as train
    from jaxsr.training.task import Task as Task
    from jaxsr.training.task_config import TaskConfig as TaskConfig

__version__ = "0.3.0"

disable_ynn_fusion()


_MODULES = ("check", "interop", "ops", "restore", "train")
"""Modules that are loaded when they are used; `check`, `restore` and `train` can be called."""
_HOME = {
    "export_stablehlo": "jaxsr.comparison.exporting",
    "Task": "jaxsr.training.task",
    "TaskConfig": "jaxsr.training.task_config",
    "to_jax": "jaxsr.interop.module",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"jaxsr.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_HOME})
