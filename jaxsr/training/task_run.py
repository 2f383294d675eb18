"""One run of a user's task: what the loop asks, answered by `jaxsr.training.user_task.Task`."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject, PyTree
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.out_of_memory import check_fits
from jaxsr.interop.sharding_rules import planned_rules
from jaxsr.interop.train.objective import Objective, check_objective
from jaxsr.models.build import check_parameters, import_attribute
from jaxsr.models.own_network import stated_uses
from jaxsr.training.engines import traced_result
from jaxsr.training.task import HostBatches, Network, ValidationResult, check_phases
from jaxsr.training.task_batches import step_batches, validation_batches
from jaxsr.training.task_data import TaskData, describe, preserved_generators
from jaxsr.training.user_code import located, located_in_users_files
from jaxsr.training.user_task import Evaluation, PhaseTrial, Task, TaskConfig, check_methods

if TYPE_CHECKING:
    import jax

_PICTURED = 8
"""Images in a validation's picture."""


class TaskFamily:
    """What `jaxsr.train` needs of a family, from a class of the user's."""

    DEFAULT_PRESETS = ("default", "default")
    """There is one preset: the options' defaults."""

    def __init__(self, name: str) -> None:
        """Imports the class `package.module:Class`.

        Raises:
          InputError: there is none, it is no task, or its options are no `TaskConfig`.
        """
        module, _, kind = name.partition(":")
        if Path(module).is_file() and Path(module) == Path(Path(module).name):
            name = f"{module.removesuffix('.py')}:{kind}"
        task = import_attribute(name, option="the task")
        if not (isinstance(task, type) and issubclass(task, Task)):
            raise InputError(
                f"{name} is no task: make it a subclass of jaxsr.Task, see docs/own-task.md"
            )
        if not (isinstance(task.Config, type) and issubclass(task.Config, TaskConfig)):
            raise InputError(f"{name}.Config must be a subclass of jaxsr.TaskConfig")
        self.name, self._task = name, task
        self.CONFIG = task.Config
        with located(f"{name}.Config"):
            self.PRESET_RUNS = {"default": task.Config()}

    def build(self, config: TaskConfig) -> "TaskRun":
        """The run of a configuration."""
        return TaskRun(self.name, self._task, config)


class TaskRun:
    """A task's data, objective and validation."""

    def __init__(self, name: str, kind: type[Task], config: TaskConfig) -> None:
        """Opens the data and builds the networks; looks at one item of each data set.

        Raises:
          InputError: the task's code fails, or gives what cannot be used.
        """
        self.family, label = name, kind.__name__
        with located(f"{label}(config)"):
            self._user = kind(config)
        self._user.config = config  # an __init__ of its own may not have kept it
        check_methods(self._user)
        self._check_metadata(label)
        self.train = self._open("train_data", self._source("train_data", config.seed))
        held_out = self._source("validation_data", config.seed)
        self.held_out = None if held_out is None else self._open("validation_data", held_out)
        self._form = self._look(self.train)
        if self.held_out is not None:
            self._look(self.held_out)
        if config.epochs is not None and self.train.length is None:
            raise InputError(
                f"epochs={config.epochs:g} need data with a length, which {self.train.name} does "
                "not have; give --steps"
            )
        self.config = self._user.config = config.in_steps(self.train.length or 0)
        self.objective = self._build(label)
        try:
            network = self.objective.get_submodule(self.exported)
        except AttributeError as error:
            raise InputError(
                f"the objective of {label} has no network {self.exported!r}; set exported"
            ) from error
        self._evaluation = Evaluation(self._user, network)
        with located(f"{label}.phases"):
            self.phases = tuple(self._user.phases(self.objective))
        check_phases(self.phases, self.config.total_steps)
        self.blocks = self._blocks() if config.remat else ()
        if config.aot is None:
            self._try_phases()
        if self.held_out is not None and config.aot is None:
            self._try_validation(self.held_out)

    def _check_metadata(self, label: str) -> None:
        """Refuses metadata that no file can hold, or that `restore` would not read."""
        metadata = self._user.metadata
        try:
            json.dumps(dict(metadata))
            stated_uses(Path(label), {"builder": self.family, **metadata})
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{label}.metadata cannot be exported, got {metadata!r}; channels and multiple are "
                "whole numbers, value_range is [black, white], and the rest lists and dictionaries "
                "of numbers and text"
            ) from error

    @property
    def exported(self) -> str:
        return self._user.exported

    @property
    def sample_name(self) -> str:
        return self._user.sample_name

    @property
    def metric(self) -> str | None:
        return self._user.metric if self.held_out is not None else None

    @property
    def best(self) -> Literal["max", "min"]:
        return self._user.best

    def _source(self, method: str, seed: int) -> Any:
        """What the task's method returns."""
        label = f"{type(self._user).__name__}.{method}"
        with located(label), preserved_generators():
            torch.manual_seed(seed)
            np.random.seed(seed)
            return getattr(self._user, method)()

    def _open(self, method: str, source: Any) -> TaskData:
        collate = self._user.collate if type(self._user).collate is not Task.collate else None
        return TaskData.open(
            source,
            name=f"{type(self._user).__name__}.{method}",
            item_names=self._user.item_names,
            collate=collate,
            seed=self._user.config.seed,
        )

    def _look(self, data: TaskData) -> str:
        """Reads one item, and says what it holds."""
        first = data.first()
        if data.kind != "steps":
            rows = self._user.config.batch
            least = rows * sum(array.nbytes for array in first.values())
            check_fits(least, f"{rows} items of {data.name}", advice="use a smaller --batch")
        return describe(first, samples=True)

    def _build(self, label: str) -> Objective:
        def build() -> Objective:
            torch.manual_seed(self.config.seed)
            return self._user.objective()

        with located(f"{label}.network"), torch.random.fork_rng(devices=[]):
            objective = None
            if self.config.aot is not None:
                # Without values, as for a network that this machine could not hold.
                with contextlib.suppress(Exception), torch.device("meta"):
                    objective = build()
            objective = build() if objective is None else objective
        if not isinstance(objective, Objective):
            raise InputError(
                f"{label}.objective returned a {type(objective).__name__}; return a "
                "jaxsr.interop.train.objective.Objective"
            )
        check_parameters(objective, label)
        check_objective(objective)
        return objective

    def _blocks(self) -> list[str]:
        """Submodules that `remat` recomputes.

        Raises:
          InputError: the task names none, and the network has no list of equal modules.
        """
        if self._user.remat_blocks:
            return [f"{self.exported}.{pattern}" for pattern in self._user.remat_blocks]
        blocks: list[str] = []
        for name, module in self._evaluation.network.named_modules():
            members = list(module.children())
            repeated = len(members) > 1 and len({type(member) for member in members}) == 1
            inside = any(name.startswith(f"{block}.") or name == block for block in blocks)
            plain = isinstance(module, nn.ModuleList | nn.Sequential) and not inside
            if plain and repeated and next(members[0].children(), None) is not None:
                blocks += [f"{name}.{key}" for key, _ in module.named_children()]
        if not blocks:
            raise InputError(
                "remat finds no list of equal modules in the network; set remat_blocks to the "
                "names of its blocks"
            )
        return [f"{self.exported}.{block.removeprefix('.')}" for block in blocks]

    def _try_validation(self, data: TaskData) -> None:
        """Runs or traces the figures of one batch: what is wrong with them shows before training.

        Raises:
          InputError: they fail, are not scalars, or lack the metric.
        """
        label = type(self._user).__name__
        with located_in_users_files():
            batch = next(validation_batches(data, self.config.batch))
            figures = self._tried("measure", batch)
            if type(self._user).pictures is not Task.pictures:
                self._tried("picture", batch)
        for name, value in figures.items():
            pair = value if isinstance(value, tuple | list) else (value, 1)
            if len(pair) != 2 or any(np.shape(part) for part in pair):
                shape = tuple(np.shape(pair[0]))
                raise InputError(
                    f"{label}.metrics returned {name!r} of shape {shape}; return scalars, or pairs "
                    "of a numerator and a denominator"
                )
        if self.metric not in figures:
            raise InputError(
                f"{label}.metric is {self.metric!r}, but validation gives "
                f"{', '.join(sorted(figures)) or 'no figure'}"
            )

    def _try_phases(self) -> None:
        """Runs or traces the losses of the later phases: a run may reach them in hours.

        A JAX step runs their code once, and a number that it changes shows in a second trace. So
        the first phase is traced, too, where no validation runs its loss.

        Raises:
          InputError: they fail.
        """
        is_seen = self.config.engine == "torch" or self.held_out is not None
        phases = self.phases[1:] if is_seen else self.phases
        first = self.train.first() if phases else {}
        rows = 1 if self.train.kind == "steps" else self.config.batch
        batch = {name: np.repeat(array, rows, axis=0) for name, array in first.items()}
        for name, _ in phases if batch else ():
            with located_in_users_files():
                phase = self.objective.phase(name)
                if self.config.engine == "torch":
                    trial = PhaseTrial(copy_module(self.objective).train(), phase)
                    with torch.random.fork_rng(devices=[]):
                        trial.losses({n: torch.from_numpy(rows) for n, rows in batch.items()})
                else:
                    trial = PhaseTrial(self.objective, phase)
                    traced_result(trial, "losses", batch, train=True)

    def _tried(self, method: str, batch: Mapping[str, np.ndarray]) -> Any:
        """What a method of the evaluation gives for a batch, from the engine of the run."""
        if self.config.engine != "torch":
            return traced_result(self._evaluation, method, batch)
        # A copy: what the figures write into buffers is no part of the training.
        network = copy_module(self._evaluation.network).eval().requires_grad_(False)
        trial = Evaluation(self._user, network)
        with torch.random.fork_rng(devices=[]):
            return getattr(trial, method)({n: torch.from_numpy(rows) for n, rows in batch.items()})

    @property
    def sharding_rules(self) -> dict[str, str]:
        """The task's rules, or those that transformers plans for its network."""
        network = self._evaluation.network
        rules = dict(self._user.sharding_rules) or planned_rules(network)
        return {f"{self.exported}.{pattern}": style for pattern, style in rules.items()}

    def prepare(self, batch: Mapping[str, PyTree], key: "jax.Array") -> Mapping[str, PyTree]:
        return batch

    def constants(self, sharding: "jax.sharding.Sharding | None") -> Mapping[str, PyTree]:
        return {}

    def batches(self, start_step: int, *, host: int, hosts: int) -> HostBatches:
        config = self.config
        if config.batch % hosts:
            raise InputError(
                f"batch={config.batch} cannot be split over {hosts} processes; use a multiple"
            )
        return step_batches(
            self.train,
            batch=config.batch,
            start_step=start_step,
            host=host,
            hosts=hosts,
            shuffle=config.shuffle,
            workers=config.workers if config.aot is None else 0,
        )

    def extra_inputs(self, phase: str) -> tuple:
        return ()

    def validate(self, network: Network) -> ValidationResult:
        if self.held_out is None:
            return ValidationResult({}, None)
        sums: dict[str, np.ndarray] = {}
        picture = None
        for number, batch in enumerate(validation_batches(self.held_out, self.config.batch)):
            rows = len(next(iter(batch.values())))
            figures = network.run(self._evaluation, "measure", batch, seed=number)
            for name, value in figures.items():
                pair = value if isinstance(value, tuple | list) else (value * rows, rows)
                sums[name] = sums.get(name, 0) + np.asarray(pair, np.float64)
            if number == 0 and type(self._user).pictures is not Task.pictures:
                picture = _tiled(network.run(self._evaluation, "picture", batch, seed=number))
        metrics = {
            name: float(total / weight) if weight else float("nan")
            for name, (total, weight) in sums.items()
        }
        return ValidationResult(metrics, picture)

    def files(self) -> dict[str, str]:
        parts = {"train": self.train, "validation": self.held_out}
        return {
            part: f"{data.length} items of {self._look(data)}"
            for part, data in parts.items()
            if data is not None
        }

    def describe(self) -> JsonObject:
        options = json.loads(json.dumps(dataclasses.asdict(self.config), default=str))
        return {
            "family": self.family,
            "network": self.exported,
            "builder": self.family,
            "builder_args": options,
            **self._user.metadata,
        }

    def summary(self) -> Sequence[str]:
        network = self._evaluation.network
        weights = sum(p.numel() for p in network.parameters())
        learning = sum(p.numel() for p in network.parameters() if p.requires_grad)
        frozen = f" ({learning:,} learn)" if learning != weights else ""
        phases = ", ".join(f"{name} {steps} steps" for name, steps in self.phases)
        count = "" if self.train.length is None else f"{self.train.length:,} items of "
        held_out = "no validation data"
        if self.held_out is not None:
            length = self.held_out.length
            held_out = f"validating on {length:,}" if length is not None else "validating"
        return (
            f"{self.family}, {type(network).__name__} of {weights:,} parameters{frozen}; {phases}; "
            f"batch {self.config.batch} over mesh {self.config.mesh}",
            f"training on {count}{self._form or 'an iterable'}; {held_out}",
        )


def _tiled(images: np.ndarray) -> np.ndarray:
    """A few images beside one another, uint8 (h, w, 3)."""
    images = np.asarray(images, np.float32)
    row = np.concatenate(list(images[:_PICTURED]), axis=-1)
    pixels = np.rint(np.clip(np.nan_to_num(row), 0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(np.moveaxis(pixels, 0, -1), (*row.shape[1:], 3)))
