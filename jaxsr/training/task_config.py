"""The options of a task: `jaxsr.TaskConfig`, and the part of a task that has no networks."""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, dataclass_transform

from jaxsr.data.processors import available_cpus
from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.training.config import CacheOptions, RunConfig


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class TaskConfig(CacheOptions, RunConfig):
    """Options of a task; a subclass adds its own, and needs no decorator.

    `lr = 3e-3` in a subclass changes the default of an inherited option. A name that is not
    inherited needs a type.
    """

    batch: int = 16
    """Samples per step, over the whole mesh and all hosts."""
    data: Path | None = None
    """Data to train on; the task decides how to read them."""
    val: Path | None = None
    """Data to validate on; the task decides how to read them."""
    steps: int | None = 1000
    """Optimiser steps of the whole run. Give either steps or epochs."""
    shuffle: bool = True
    """Shuffle the data anew in each epoch; off: keep the data's own order."""
    workers: int = number(0, least=0)
    """Processes that load data ahead; 0 loads in this process between steps."""
    cache: Literal["off", "auto", "device", "host"] = "off"
    """Where items stay after they are read, if they are the same each time: on the device, in host
    memory, or auto: on the device if they fit --resident-gb. A thread then reads ahead."""
    prefetch: int | None = number(None, least=0, most=1024)
    """Batches that a thread makes ahead of the step, for data that draw no random numbers from
    generators of the process. Default: 4 if --cache keeps items, else 0."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        types = {field.name: field.type for field in dataclasses.fields(cls)}
        stated = inspect.get_annotations(cls)
        for name, value in vars(cls).items():
            is_value = isinstance(value, int | float | str | tuple | list | Path | None)
            if is_value and not (name in types or name in stated or name.startswith("_")):
                raise InputError(
                    f"{cls.__qualname__}.{name} = {value!r} is not a known run option; give "
                    f"one of your own a type ({name}: {type(value).__name__} = {value!r}), or "
                    "correct the name"
                )
        # A plain `lr = 3e-3` would not reach the field of that name.
        cls.__annotations__ = {n: types[n] for n in vars(cls) if n in types} | stated
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        super().__post_init__()
        processors = available_cpus()
        if self.workers > 2 * processors:
            raise InputError(
                f"workers must be at most {2 * processors}, twice the processors that this process "
                f"may use, got {self.workers}: more only wait for one another"
            )
        if self.workers and (self.cache != "off" or self.prefetch):
            raise InputError(
                f"workers={self.workers} are processes, which cannot share kept items; leave out "
                f"--workers, or cache={self.cache} and prefetch={self.prefetch}"
            )


class TaskOptions:
    """The part of a task that its command line needs; `Task` adds networks, losses and data."""

    Config: ClassVar[type[RunConfig]] = TaskConfig
    """Options of the run, set on the command line."""
    presets: ClassVar[Mapping[str, RunConfig]] = {}
    """Options by the name that `--preset` takes. Default: a single one, `default`."""
    default_presets: ClassVar[tuple[str, str]] = ("default", "default")
    """The presets without and with `--data`."""
