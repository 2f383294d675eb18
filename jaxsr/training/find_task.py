"""Tasks by name: jaxsr's own, and `package.module:Class` of a user."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsr.errors import InputError, did_you_mean, printable
from jaxsr.training.config import RunConfig
from jaxsr.training.task_config import TaskOptions
from jaxsr.training.user_code import located

if TYPE_CHECKING:
    from jaxsr.training.task import Task

TASKS = {
    "fast-srgan": ("fast_srgan", "FastSRGAN"),
    "span": ("span", "Span"),
    "mshnet": ("mshnet", "MSHNet"),
    "super-resolution": ("super_resolution", "SuperResolution"),
    "detection": ("detection", "Detection"),
}
"""Module and name of each task: `NAMETask` in a module of this folder, and its options,
`NAMEPresets`, in the module of the same name in `presets`. The last two train a user's network."""


def find_options(name: str) -> type[TaskOptions]:
    """Returns the options of the named task; for jaxsr's own tasks no framework is loaded.

    Raises:
      InputError: as `find_task`.
    """
    if name not in TASKS:
        return find_task(name)
    module, kind = TASKS[name]
    return getattr(import_module(f"jaxsr.training.presets.{module}"), f"{kind}Presets")


def find_task(name: str) -> "type[Task]":
    """Returns the task of a name.

    Raises:
      InputError: there is no such task, it is not a task, or its options are not a `RunConfig`.
    """
    if name in TASKS:
        module, kind = TASKS[name]
        return getattr(import_module(f"jaxsr.training.{module}"), f"{kind}Task")
    module, colon, kind = name.partition(":")
    if not colon:
        with_network = "super-resolution", "detection"
        families = (family for family in TASKS if family not in with_network)
        raise InputError(
            f"no model family {name!r} to train{did_you_mean(name, TASKS)}; there are "
            f"{', '.join(families)}, with --network "
            f"{' and '.join(with_network)}, and a task of your own is module:Class, for instance "
            f"{printable(name, 80)}:MyTask"
        )
    if Path(module).is_file() and Path(module) == Path(Path(module).name):
        module = module.removesuffix(".py")
    from jaxsr.models.build import import_attribute

    return check_task(import_attribute(f"{module}:{kind}", option="the task"), name)


def check_task(task: object, name: str) -> "type[Task]":
    """Returns the task, checked.

    Raises:
      InputError: it is not a task, or its options are not a `RunConfig`.
    """
    from jaxsr.training.task import Task

    if not (isinstance(task, type) and issubclass(task, Task)):
        raise InputError(f"{name} is not a task; subclass jaxsr.Task, see docs/own-task.md")
    if not (isinstance(task.Config, type) and issubclass(task.Config, RunConfig)):
        raise InputError(f"{name}.Config must be a subclass of jaxsr.TaskConfig")
    return task


def presets_of(task: type[TaskOptions]) -> Mapping[str, RunConfig]:
    """Returns the options' defaults by preset."""
    if task.presets:
        return task.presets
    with located(f"{task.__name__}.Config"):
        return {"default": task.Config()}  # pyright: ignore[reportCallIssue]
