"""PyTorch vision and language code, run natively on JAX.

`jaxsr.interop` turns torch modules into pure JAX functions, `jaxsr.ops` holds the image kernels.
Importing this package touches no device. It changes one thing outside: a flag is added to
`XLA_FLAGS`, because XLA miscompiles CPU programs without it (`jaxsr.runtime.xla_flags`).
"""

from typing import TYPE_CHECKING

from jaxsr.runtime.xla_flags import disable_ynn_fusion

if TYPE_CHECKING:
    from jaxsr.checking.check_module import check as check
    from jaxsr.restore import restore as restore
    from jaxsr.train import train as train
    from jaxsr.training.task import Task as Task
    from jaxsr.training.task import TaskConfig as TaskConfig

__version__ = "0.2.0"

disable_ynn_fusion()


def __getattr__(name: str) -> object:
    # Modules that can be called; nothing of them is loaded before it is used.
    if name in ("check", "restore", "train"):
        from importlib import import_module

        return import_module(f"jaxsr.{name}")
    if name in ("Task", "TaskConfig"):
        from jaxsr.training import task

        return getattr(task, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
