"""One run of a task: the interface of `Task` for the engines and the loop."""

import contextlib
import json
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax
import torch

from jaxsr.data.device_cache import on_device
from jaxsr.data.input_files import files_digest
from jaxsr.data.prefetch import BatchStream
from jaxsr.errors import InputError, one_line
from jaxsr.interop.agreement import check_alike
from jaxsr.interop.annotations import JsonObject, PyTree
from jaxsr.interop.array_digests import named_leaves
from jaxsr.interop.host_arrays import to_torch
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.out_of_memory import check_fits
from jaxsr.interop.sealed_json import short_digest
from jaxsr.interop.sharding_rules import planned_rules
from jaxsr.interop.train.objective import Objective, check_objective
from jaxsr.interop.train.optimizers import OptimizerConfig
from jaxsr.models.build import check_parameters
from jaxsr.models.own_network import stated_uses
from jaxsr.training.config import RunConfig
from jaxsr.training.config_file import to_json
from jaxsr.training.fine_tuning import learning_rate_factors
from jaxsr.training.generators import preserved_generators
from jaxsr.training.phases import check_phases, phases_in_words
from jaxsr.training.remat import blocks_to_recompute
from jaxsr.training.task import Task
from jaxsr.training.task_batches import step_batches, validation_batches
from jaxsr.training.task_config import TaskConfig
from jaxsr.training.task_data import TaskData, describe
from jaxsr.training.task_guards import check_arrays, refusing_draws, refusing_state
from jaxsr.training.task_methods import (
    PhaseTrial,
    ValidationMethods,
    check_methods,
    traced_result,
)
from jaxsr.training.user_code import located, located_in_users_files
from jaxsr.training.validation import Network, ValidationResult

Optimizer = OptimizerConfig | optax.GradientTransformation

_ITEMS = "items"
"""Name of the constant that has all items on the device."""
_PICTURED = 8
"""Images in the preview of a validation."""


class TaskRun:
    """A task with its data opened, its networks built, and its length in steps."""

    def __init__(self, name: str, kind: type[Task], config: RunConfig) -> None:
        """Opens the data and builds the networks; reads one item of each data set.

        Raises:
          InputError: the task's code fails, or returns something that cannot be used.
        """
        self.family, label = name, kind.__name__
        self._is_users = not kind.__module__.startswith("jaxsr.")
        with self._located(f"{label}(config)"):
            self.task = kind(config)
        self.task.config = config  # an overriding __init__ may not have stored it
        check_methods(self.task)
        self._check_metadata(label)
        self.exported, self.sample_name = self.task.exported, self.task.sample_name
        self.best: Literal["max", "min"] = self.task.best
        self.train = self._open("train_data", self._source("train_data", config.seed))
        held_out = self._source("validation_data", config.seed)
        self.held_out = None if held_out is None else self._open("validation_data", held_out)
        self._form = "" if self.task.defines("files") else self._look(self.train)
        if self.held_out is not None:
            self._look(self.held_out)
        self.is_validated = self.held_out is not None or self.task.defines("validate")
        self.metric = self.task.metric if self.is_validated else None
        self._check_names()
        if config.epochs is not None and self.train.length is None:
            raise InputError(
                f"epochs={config.epochs:g} need data with a length, which {self.train.name} does "
                "not have; give --steps"
            )
        self.config = self.task.config = config.in_steps(self.train.length or 0)
        self.objective = self._build(label)
        try:
            self.network = self.objective.get_submodule(self.exported)
        except AttributeError as error:
            raise InputError(
                f"the objective of {label} has no network {self.exported!r}; set exported"
            ) from error
        self._evaluation = ValidationMethods(self.task, self.network)
        with self._located(f"{label}.phases"):
            self.phases = tuple(self.task.phases(self.objective))
        check_phases(self.phases, self.config.total_steps)
        self.blocks: Sequence[str] = ()
        if config.remat:
            self.blocks = blocks_to_recompute(
                self.network, self.task.remat_blocks, prefix=self.exported, owner=label
            )
        if config.aot is None and self._is_users:
            self._try_phases()
            if self.held_out is not None and not self.task.defines("validate"):
                self._try_validation(self.held_out)
            self.describe()  # used after the first steps
            self.summary()

    @property
    def learning_rate_factors(self) -> dict[str, float]:
        """Returns the factors of the learning rate by parameter name; factors of 1 are left out."""
        return learning_rate_factors(self.network, self.config.lr_factor, f"{self.exported}.")

    def _located(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Makes errors of the user's code one line; errors of jaxsr keep their traceback."""
        return located(what) if self._is_users else contextlib.nullcontext()

    @contextlib.contextmanager
    def _returning(self, method: str, rule: str) -> Generator[None]:
        """Makes results of another type one line."""
        label = f"{type(self.task).__name__}.{method}"
        try:
            yield
        except (TypeError, ValueError) as error:
            raise InputError(f"{label} must return {rule} ({one_line(error)})") from error

    def _check_names(self) -> None:
        """Refuses data with names that `prepare` receives from elsewhere.

        Raises:
          InputError: the message has the name.
        """
        if not self.task.defines("prepare") or self.train.kind == "samples":
            return
        if taken := {*self.train.first()} & {"sample", *self.task.constants()}:
            raise InputError(
                f"{self.train.name} has {', '.join(sorted(taken))}, a name that prepare gets the "
                "samples' numbers or a constant by; rename it in the data"
            )

    def _check_metadata(self, label: str) -> None:
        """Refuses metadata that a file cannot store, or that `restore` would not read."""
        metadata = self.task.metadata
        try:
            json.dumps(dict(metadata))
            stated_uses(Path(label), {"builder": self.family, **metadata})
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{label}.metadata cannot be exported, got {metadata!r}; channels and multiple are "
                "whole numbers, value_range is [black, white], and the rest lists and dictionaries "
                "of numbers and text"
            ) from error

    def _source(self, method: str, seed: int) -> Any:
        """Returns the value that the task's method returns."""
        label = f"{type(self.task).__name__}.{method}"
        with self._located(label), preserved_generators():
            torch.manual_seed(seed)
            np.random.seed(seed)
            return getattr(self.task, method)()

    def _open(self, method: str, source: Any) -> TaskData:
        if isinstance(source, TaskData):
            return source
        config = self.task.config
        data = TaskData.open(
            source,
            name=f"{type(self.task).__name__}.{method}",
            item_names=self.task.item_names,
            collate=self.task.collate if self.task.defines("collate") else None,
            seed=config.seed,
        )
        if method == "train_data" and isinstance(config, TaskConfig):
            if config.cache in ("auto", "device", "host"):
                data = data.kept(config.cache, config)
            elif config.prefetch:
                data = data.threaded(f"prefetch={config.prefetch}")
        return data

    def _look(self, data: TaskData) -> str:
        """Reads one item, and describes it."""
        first = data.first()
        if data.kind != "steps":
            rows = self.task.config.batch
            least = rows * sum(array.nbytes for array in first.values())
            check_fits(least, f"{rows} items of {data.name}", advice="use a smaller --batch")
        return describe(first, samples=True)

    def _build(self, label: str) -> Objective:
        def build() -> Objective:
            torch.manual_seed(self.config.seed)
            return self.task.objective()

        with self._located(f"{label}.network"), torch.random.fork_rng(devices=[]):
            objective = None
            if self.config.aot is not None:
                # Without values, as for a network that does not fit in this machine's memory.
                with (
                    contextlib.suppress(Exception),
                    warnings.catch_warnings(action="error"),
                    torch.device("meta"),
                ):
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

    def _try_validation(self, data: TaskData) -> None:
        """Runs or traces the figures of one batch, so that errors show before training.

        Raises:
          InputError: they fail, are not scalars, or lack the metric.
        """
        label = type(self.task).__name__
        with located_in_users_files():
            batch = next(self._validation_batches(data))
            figures = self._tried("measure", batch)
            if self.task.defines("pictures"):
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
        """Runs or traces the losses of the later phases, which a run may reach only after hours.

        A JAX step runs their code once, and a number that it changes shows in a second trace. So
        the first phase is also traced if no validation runs its loss.

        Raises:
          InputError: a loss fails.
        """
        is_seen = self.config.engine == "torch" or self.held_out is not None
        phases = self.phases[1:] if is_seen else self.phases
        first = self.train.first() if phases else {}
        rows = 1 if self.train.kind == "steps" else self.config.batch
        batch = {name: np.repeat(array, rows, axis=0) for name, array in first.items()}
        if batch and self.task.defines("prepare"):
            batch = self._tried_preparation(batch)
        elif batch:
            batch |= jax.tree.map(np.asarray, dict(self.task.constants()))
        check_arrays(batch)
        for name, _ in phases if batch else ():
            with located_in_users_files():
                phase = self.objective.phase(name)
                if self.config.engine == "torch":
                    trial = PhaseTrial(copy_module(self.objective).train(), phase)
                    with torch.random.fork_rng(devices=[]):
                        trial.losses({n: to_torch(rows) for n, rows in batch.items()})
                else:
                    trial = PhaseTrial(self.objective, phase)
                    traced_result(trial, "losses", batch, train=True)

    def _tried_preparation(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Returns the result of `prepare` for a batch; on the JAX engine only shapes and dtypes."""
        batch = {**batch, **self.task.constants()}
        batch["sample"] = np.arange(len(next(iter(batch.values()))), dtype=np.int32)
        key = jax.random.key(0)
        with located_in_users_files():
            if self.config.engine == "torch":
                return on_host(jax.jit(self.task.prepare)(batch, key))
            return jax.eval_shape(self.task.prepare, batch, key)

    def _tried(self, method: str, batch: Mapping[str, np.ndarray]) -> Any:
        """Returns the result of a method of the evaluation for a batch, from the run's engine."""
        if self.config.engine != "torch":
            return traced_result(self._evaluation, method, batch)
        # A copy: values that the figures write into buffers are not part of the training.
        network = copy_module(self.network).eval().requires_grad_(False)
        trial = ValidationMethods(self.task, network)
        with torch.random.fork_rng(devices=[]):
            return getattr(trial, method)({n: to_torch(rows) for n, rows in batch.items()})

    @property
    def sharding_rules(self) -> dict[str, str]:
        """The task's rules, or those that transformers plans for its network."""
        rules = dict(self.task.sharding_rules) or planned_rules(self.network)
        return {f"{self.exported}.{pattern}": style for pattern, style in rules.items()}

    def prepare(self, batch: Mapping[str, PyTree], key: jax.Array) -> Mapping[str, PyTree]:
        """Makes the objective's batch from the host's batch and `constants`, under `jit`."""
        arrays = dict(batch)
        if self.train.resident:
            items, index = arrays.pop(_ITEMS), arrays.pop("index")
            # Every device has all items: a mesh needs no communication.
            arrays |= {name: column[index] for name, column in items.items()}
        if not self.task.defines("prepare"):
            check_arrays(arrays)
            return arrays
        if not self._is_users:
            return self.task.prepare(arrays, key)
        for _ in range(2):  # what one call makes is a cache, or a count that another one changes
            with refusing_state(self.task, "prepare"), refusing_draws(self.task, "prepare"):
                prepared = self.task.prepare(dict(arrays), key)
        check_arrays(prepared)
        return prepared

    def constants(self, sharding: jax.sharding.Sharding | None) -> Mapping[str, PyTree]:
        """Returns the arrays that every batch carries unchanged, placed once by `sharding`."""
        arrays = self.host_constants()
        if jax.process_count() > 1:
            leaves = named_leaves(arrays).items()
            check_alike({"constants": {n: short_digest(leaf.tobytes()) for n, leaf in leaves}})
        return jax.tree.map(lambda leaf: on_device(leaf, sharding), arrays)

    def host_constants(self) -> Mapping[str, PyTree]:
        """Returns the constants as NumPy arrays."""
        with self._located(f"{type(self.task).__name__}.constants"):
            constants = dict(self.task.constants())
        if self.train.resident:
            constants[_ITEMS] = self.train.columns()
        return jax.tree.map(np.asarray, constants)

    def optimizers(self, networks: Iterable[str]) -> dict[str, Optimizer]:
        """Returns the optimiser of each network.

        Raises:
          InputError: the task's method returns something else, or the engine lacks the optimiser.
        """
        made = {name: self.task.optimizer(name) for name in networks}
        for name, optimizer in made.items():
            if isinstance(optimizer, OptimizerConfig):
                continue
            what = f"{type(self.task).__name__}.optimizer({name!r})"
            if not isinstance(optimizer, optax.GradientTransformation):
                raise InputError(
                    f"{what} returned a {type(optimizer).__name__}; return an optax "
                    "transformation, or dataclasses.replace(self.config.optimizer_config, lr=…)"
                )
            if self.config.engine == "torch":
                raise InputError(
                    f"{what} is a transformation of optax, which torch.optim has no twin of; use "
                    "--engine jax, or return an OptimizerConfig"
                )
            if self.config.lr_factor and name == self.exported:
                raise InputError(
                    f"lr_factor scales the options' learning rate, and {what} has one of its own; "
                    "leave --lr-factor out, or use optax.partition"
                )
        return made

    def batches(self, start_step: int, *, host: int, hosts: int) -> BatchStream:
        """Returns this host's rows of the batches of `start_step` and all later steps."""
        config, options = self.config, {}
        if isinstance(config, TaskConfig):
            workers = config.workers if config.aot is None else 0
            options = {"shuffle": config.shuffle, "workers": workers, "prefetch": config.prefetch}
        return step_batches(
            self.train,
            batch=config.batch,
            start_step=start_step,
            host=host,
            hosts=hosts,
            numbered=self.task.defines("prepare"),
            **options,
        )

    def _validation_batches(self, data: TaskData) -> Iterator[dict[str, np.ndarray]]:
        """Yields every item once, prepared."""
        batches = validation_batches(data, self.config.batch)
        if not self.task.defines("prepare_validation"):
            yield from batches
            return
        prepare, constants = jax.jit(self.task.prepare_validation), self.task.constants()
        for batch in batches:
            yield on_host(prepare({**batch, **constants}))

    def validate(self, network: Network) -> ValidationResult:
        """Returns the figures of the network on data that it was not trained on."""
        if self.task.defines("validate"):
            return self.task.validate(network)
        if self.held_out is None:
            return ValidationResult({}, None)
        sums: dict[str, np.ndarray] = {}
        picture, runner = None, network.around(self._evaluation)
        for number, batch in enumerate(self._validation_batches(self.held_out)):
            rows = len(next(iter(batch.values())))
            figures = runner.run("measure", batch, seed=number)
            for name, value in figures.items():
                pair = value if isinstance(value, tuple | list) else (value * rows, rows)
                sums[name] = sums.get(name, 0) + np.asarray(pair, np.float64)
            if number == 0 and self.task.defines("pictures"):
                picture = _tiled(runner.run("picture", batch, seed=number))
        metrics = {
            name: float(total / weight) if weight else float("nan")
            for name, (total, weight) in sums.items()
        }
        return ValidationResult(metrics, picture)

    def files(self) -> Mapping[str, str]:
        """Lists the samples of training and validation by name: equal on all hosts."""
        if self.task.defines("files"):
            with self._returning("files", "a dictionary of texts by name"):
                files = self.task.files()
                json.dumps(sorted({**files}.items()))
                "".join([*files, *files.values()])
            return files
        parts = {"train": self.train, "validation": self.held_out}
        return {
            part: f"{data.length} items of {self._look(data)}"
            for part, data in parts.items()
            if data is not None
        }

    def folders(self, *without: Path) -> dict[str, str]:
        """Digests of the files in `--data` and `--val`, of a task that does not list its samples.

        Args:
          without: folders of runs, which may lie in that of the data.
        """
        if self.task.defines("files"):
            return {}
        left_out = {path.resolve() for path in without}
        paths = {name: getattr(self.config, name) for name in ("data", "val")}
        return {
            name: files_digest(path, left_out=lambda folder: folder.resolve() in left_out)
            for name, path in paths.items()
            if path is not None and (path.is_dir() or path.is_file())
        }

    def describe(self) -> JsonObject:
        """Returns the metadata of a weights file, from which another program builds the network."""
        if self.task.defines("describe"):
            with self._returning("describe", "a dictionary of numbers and text, by name"):
                notes = {**self.task.describe()}
                json.dumps(notes)
                "".join(notes)
            return notes
        options = to_json("", self.config)["options"]
        return {
            "family": self.family,
            "network": self.exported,
            "builder": self.family,
            "builder_args": options,
            **self.task.metadata,
        }

    def summary(self) -> Sequence[str]:
        """Returns lines that describe the run, printed once at its start."""
        if self.task.defines("summary"):
            with self._returning("summary", "a list of lines of text"):
                lines = self.task.summary(self.objective)
                "".join([*lines])
            return [lines] if isinstance(lines, str) else lines
        network = self.network
        weights = sum(p.numel() for p in network.parameters())
        learning = sum(p.numel() for p in network.parameters() if p.requires_grad)
        frozen = f" ({learning:,} learn)" if learning != weights else ""
        phases = phases_in_words(self.phases)
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


def on_host(batch: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
    """Copies the batch to arrays that may be written, as torch requires."""
    return {name: np.array(rows) for name, rows in batch.items()}


def _tiled(images: np.ndarray) -> np.ndarray:
    """Tiles a few images side by side, uint8 (h, w, 3)."""
    images = np.asarray(images, np.float32)
    row = np.concatenate(list(images[:_PICTURED]), axis=-1)
    pixels = np.rint(np.clip(np.nan_to_num(row), 0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(np.moveaxis(pixels, 0, -1), (*row.shape[1:], 3)))
