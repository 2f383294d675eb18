"""Two engines behind one interface: JAX on a mesh, and plain PyTorch on one device.

Both run the same task, so the loop above them is the same for both.
"""

import contextlib
import dataclasses
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from jaxsr.errors import InputError
from jaxsr.interop import mesh as meshes
from jaxsr.interop.agreement import check_alike
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.host_arrays import to_numpy
from jaxsr.interop.out_of_memory import check_program_fits
from jaxsr.interop.sealed_json import short_digest
from jaxsr.interop.sharding_rules import check_rules
from jaxsr.interop.train.gradients import Arrays, select_network
from jaxsr.interop.train.objective import uncut_names
from jaxsr.interop.train.optimizers import (
    OptimizerConfig,
    make_optimizer,
    make_schedule,
    validated_params,
)
from jaxsr.interop.train.step import TrainState, TrainStep, convert, init_state
from jaxsr.models.weight_files import names_of_tensors
from jaxsr.runtime.jax_runner import JaxRunner
from jaxsr.runtime.runner import Runner
from jaxsr.runtime.setup import torch_device
from jaxsr.training.task_run import TaskRun
from jaxsr.training.validation import Network

if TYPE_CHECKING:
    from torch import Tensor, nn


_PREPARATION = 0x70726570  # "prep"

Metrics = Mapping[str, Any]
"""Scalars by `network/name`; the torch engine gives torch tensors."""


def updates_of(task: TaskRun) -> dict[str, int]:
    """Returns the number of updates of each network over the run."""
    updates: dict[str, int] = {}
    for name, steps in task.phases:
        for player in task.objective.phase(name).players:
            updates[player.network] = updates.get(player.network, 0) + steps
    return updates


def preparation_key(root: jax.Array, step: ArrayLike) -> jax.Array:
    """Returns the key of the task's `prepare` in a step; the networks draw from others."""
    return jax.random.fold_in(jax.random.fold_in(root, step), _PREPARATION)


class StepPrograms:
    """A task's steps as jitted functions on a mesh, whose devices may belong to another machine."""

    def __init__(self, task: TaskRun, mesh: jax.sharding.Mesh) -> None:
        config = task.config
        self.mesh = mesh
        self._task = task
        self._config = config.step_config
        factors = task.learning_rate_factors
        self._optimizers: dict[str, optax.GradientTransformation] = {}
        self._schedules: dict[str, optax.Schedule] = {}
        updates = updates_of(task)
        for name, chosen in task.optimizers(updates).items():
            if isinstance(chosen, OptimizerConfig):
                steps = updates[name]
                self._schedules[name] = make_schedule(chosen, steps)
                self._optimizers[name] = make_optimizer(
                    chosen, steps, select_network(factors, name)
                )
            else:
                self._optimizers[name] = chosen
        blocks = task.blocks if config.remat else ()
        self._model = convert(
            task.objective,
            self._config,
            remat=blocks,
            model_devices=meshes.model_devices(mesh),
            device=mesh.devices.flat[0],
        )
        self.non_persistent = self._model.non_persistent
        rules = task.sharding_rules
        if mesh.shape["tensor"] > 1 and not rules:
            raise InputError(
                f"mesh {config.mesh} splits weights over tensor by rules, but {task.family} has "
                "none; set sharding_rules in the task, or use fsdp, which splits by size"
            )
        check_rules(rules, {**self._model.params, **self._model.buffers}.keys())
        self.shardings = meshes.tree_shardings(self.state_shapes(), mesh, rules)

    def keep_state(self) -> bool:
        """Whether a step that was traced left Python state."""
        return self._model.functional.keeps_state

    def initial_state(self) -> TrainState:
        """Returns the state before the first step, on the default device."""
        return self._initial_state(self._model.params, self._model.buffers)

    def state_shapes(self) -> PyTree:
        """Returns the shapes and dtypes of that state; the parameters need no values."""
        return jax.eval_shape(self._initial_state, self._model.params, self._model.buffers)

    def _initial_state(self, params: Arrays, buffers: Arrays) -> TrainState:
        return init_state(
            dataclasses.replace(self._model, params=params, buffers=buffers),
            self._optimizers,
            exported=self._task.exported,
            seed=self._task.config.seed,
            ema=self._task.config.ema > 0,
        )

    def jit(self, phase: str) -> jax.stages.Wrapped:
        """Returns a phase's step, `(state, batch) -> (state, metrics)`, which donates its state."""

        constants = [*self._task.task.constants()]

        def step(
            state: TrainState, batch: Mapping[str, Any]
        ) -> tuple[TrainState, Arrays]:  # The name appears in profiles and caches.
            def prepare(rows: Mapping[str, Any], root: jax.Array) -> Mapping[str, jax.Array]:
                return self._task.prepare(rows, preparation_key(root, state.step))

            train_step = TrainStep(
                self._model,
                self._task.objective.phase(phase),
                self._optimizers,
                prepare=prepare,
                mesh=self.mesh,
                config=self._config,
                schedules=self._schedules,
                constants=constants,
            )
            return train_step(state, batch)

        return jax.jit(
            step,
            donate_argnums=0,
            out_shardings=(self.shardings, meshes.replicated(self.mesh)),
        )


_ADDRESS = re.compile(r"\b\d{12,}\b")
"""Functions of a process, in calls of its program."""


class JaxEngine:
    """The jitted step on a mesh; the state leaves the devices only to be saved."""

    def __init__(self, task: TaskRun) -> None:
        self.mesh = meshes.make_mesh(task.config.mesh_shape)
        self._task = task
        self._programs = StepPrograms(task, self.mesh)
        self._state = meshes.place(self._programs.initial_state(), self._programs.shardings)
        self._constants = dict(task.constants(meshes.replicated(self.mesh)))
        self._runners: dict[tuple, JaxRunner] = {}
        self._steps: dict[str, jax.stages.Wrapped] = {}
        self._fits: set[str] = set()
        """Phases whose step is known to fit in memory."""
        # Also counted here: reading the device's counter would wait for the step.
        self._step = 0

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self._step

    def compiled(self, phase: str) -> jax.stages.Wrapped:
        """Returns the jitted step of a phase, made once."""
        if phase not in self._steps:
            self._steps[phase] = self._programs.jit(phase)
        return self._steps[phase]

    def place(self, batch: Mapping[str, np.ndarray]) -> dict[str, PyTree]:
        """Moves the host's batch and the task's constants to the devices."""
        return meshes.place_batch(dict(batch), self.mesh) | self._constants

    def train_step(self, phase: str, batch: Mapping[str, np.ndarray]) -> Metrics:
        """Runs one step; its metrics may still be pending."""
        step, placed = self.compiled(phase), self.place(batch)
        if phase not in self._fits:
            lowered = step.lower(self._state, placed)
            if jax.process_count() > 1:
                text = _ADDRESS.sub("", lowered.as_text())
                digest = short_digest(text.encode())
                check_alike({"programs": {f"step of {phase}": digest}})
            check_program_fits(lowered.compile(), self.mesh.local_devices, "the values of a step")
            self._fits.add(phase)
        self._state, metrics = step(self._state, placed)
        self._step += 1
        return metrics

    def fetch(self, metrics: list[Metrics]) -> list[dict[str, float]]:
        """Waits for the metrics of several steps and copies them to the host."""
        return [{n: float(v) for n, v in m.items()} for m in jax.device_get(metrics)]

    def state(self) -> PyTree:
        """The state that a checkpoint must contain, as a tree of arrays."""
        return self._state

    def sound_state(self) -> PyTree:
        """`state` after a step that failed: as it was before that step, ready to continue from."""
        return self._state.replace(failed_step=self._state.failed_step * 0)

    def load(self, state: PyTree) -> None:
        """Replaces the state by a tree that `state` returned."""
        self._state = state
        self._step = int(jax.device_get(state.step))

    def like_checkpoint(self, names: Collection[str]) -> PyTree:
        """The state as a run saves it whose options give optimisers other links, or no average.

        Args:
          names: of the arrays in its checkpoint.
        """
        state = self._state
        optimizers = {
            network: _with_links_at(_links(names, network), chain)
            for network, chain in state.optimizers.items()
        }
        averaged = select_network(state.params, self._task.exported)
        has_average = any(name.startswith("ema/") for name in names)
        return state.replace(optimizers=optimizers, ema=averaged if has_average else {})

    def adopted(self, state: PyTree) -> PyTree:
        """A state of `like_checkpoint` as this run has it; an average begins at the parameters."""
        optimizers = {
            network: jax.tree.unflatten(
                jax.tree.structure(chain), jax.tree.leaves(state.optimizers[network])
            )
            for network, chain in self._state.optimizers.items()
        }
        ema = {n: state.ema.get(n, jnp.copy(state.params[n])) for n in self._state.ema}
        return state.replace(optimizers=optimizers, ema=ema)

    def _exported(self, prefix: str = "") -> tuple[Arrays, Arrays]:
        """Returns the exported network's parameters, averaged or not, and its buffers, on the mesh.

        Args:
          prefix: prefix of their torch names.
        """
        name, state = self._task.exported, self._state
        params = select_network(state.params, name)
        params = {**validated_params(state.optimizers.get(name, ()), params), **state.ema}
        trees = params, select_network(state.buffers, name)
        renamed = [
            {prefix + key.removeprefix(f"{name}."): array for key, array in tree.items()}
            for tree in trees
        ]
        return renamed[0], renamed[1]

    def network(self, phase: str) -> Network:
        """Returns the exported network in evaluation mode at this step, with a phase's arguments.

        Its weights are the moving average, if there is one, or the one of a schedule-free rule.
        """

        def alone() -> Runner:
            device, inputs = jax.local_devices()[:1], self._task.task.inputs(phase)
            runner = self._runner(self._task.network, meshes.make_mesh(1, device), inputs)
            return runner.with_state(
                lambda: jax.device_put(whole_on_host(self._exported()), device[0])
            )

        def around(module: "nn.Module") -> Runner:
            return self._runner(module, self.mesh).with_state(lambda: self._exported("network."))

        return Network(alone, around)

    def _runner(
        self, module: "nn.Module", mesh: jax.sharding.Mesh, inputs: tuple = ()
    ) -> JaxRunner:
        """Returns the runner of a module, opened once."""
        if (module, inputs) not in self._runners:
            self._runners[module, inputs] = JaxRunner(
                module,
                mesh=mesh,
                lane_folding="off",
                inputs=inputs,
                draws=True,
                steps_keep_state=self._programs.keep_state,
            )
        return self._runners[module, inputs]

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the exported network's arrays under its own torch names, on the host."""
        params, buffers = whole_on_host(self._exported())
        prefix = self._task.exported + "."
        left_out = {n.removeprefix(prefix) for n in self._programs.non_persistent}
        arrays = params | {n: array for n, array in buffers.items() if n not in left_out}
        return _under_all_names(arrays, self._task.network)


def _links(names: Collection[str], network: str) -> list[int]:
    """The places of the links of an optimiser that have a state."""
    prefix = f"optimizers/{network}/"
    places = {n.removeprefix(prefix).partition("/")[0] for n in names if n.startswith(prefix)}
    return sorted(int(place) for place in places if place.isdecimal())


def _with_links_at(places: Sequence[int], chain: Any) -> Any:
    """A chain whose links with a state are at other places; as it is where their number differs."""
    links = [link for link in chain if jax.tree.leaves(link)] if isinstance(chain, tuple) else []
    if len(links) != len(places) or not links:
        return chain
    moved: list[Any] = [optax.EmptyState()] * (places[-1] + 1)
    for place, link in zip(places, links, strict=True):
        moved[place] = link
    return tuple(moved)


class TorchEngine:
    """Plain PyTorch on one device; the JAX engine's kernels prepare the batches."""

    def __init__(self, task: TaskRun) -> None:
        from jaxsr.interop.train.torch_step import TorchStep

        config = task.config
        self._task = task
        updates = updates_of(task)
        optimizers: Any = task.optimizers(updates)  # refuses options that torch lacks
        device = torch_device(config.platform)
        self._runner = TorchStep(
            task.objective,
            optimizers,
            updates,
            exported=task.exported,
            config=config.step_config,
            device=device,
            compiled=config.compile,
            lr_factors=task.learning_rate_factors,
        )
        self._key = jax.random.key(config.seed)
        self._constants = dict(task.constants(None))

        def prepare(batch: Mapping[str, Any], step: jax.Array) -> Mapping[str, Any]:
            prepared = task.prepare(batch, preparation_key(self._key, step))
            if config.step_config.accumulate > 1:
                constants = {name: batch[name] for name in task.task.constants()}
                self._uncut = uncut_names(prepared, constants)
            return prepared

        self._uncut = set[str]()
        self._prepare = jax.jit(prepare)

    @property
    def step(self) -> int:
        return self._runner.step

    def train_step(self, phase: str, batch: Mapping[str, np.ndarray]) -> Metrics:
        import torch

        prepared = self._prepare({**batch, **self._constants}, self.step)
        # Seeded by step number, as the JAX engine's keys are: a resumed run draws the same numbers.
        seed = self._task.config.seed
        torch.manual_seed(seed << 32 | self.step)
        random.seed(seed << 32 | self.step)
        np.random.seed(np.random.SeedSequence([seed, self.step]).generate_state(4))
        return self._runner.train_step(phase, jax.device_get(prepared), uncut=self._uncut)

    def fetch(self, metrics: list[Metrics]) -> list[dict[str, float]]:
        return [{n: float(v) for n, v in m.items()} for m in metrics]

    def state(self) -> PyTree:
        return self._runner.state()

    def sound_state(self) -> PyTree:
        return self.state()

    def like_checkpoint(self, names: Collection[str]) -> PyTree:
        del names
        return self.state()

    def adopted(self, state: PyTree) -> PyTree:
        return state

    def load(self, state: PyTree) -> None:
        self._runner.load(state)

    def network(self, phase: str) -> Network:
        from jaxsr.runtime.torch_runner import TorchRunner

        def around(module: "nn.Module", inputs: tuple = ()) -> Runner:
            device = str(self._runner.device)
            return TorchRunner(module, device=device, inputs=inputs, evaluating=self._averaged)

        return Network(lambda: around(self._task.network, self._task.task.inputs(phase)), around)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """Switches to evaluation mode, with the averaged parameters if there are any."""
        parameters = dict(self._task.network.named_parameters())
        trained = {name: parameters[name].data for name, _ in self._average()}
        with self._runner.evaluating():
            try:
                for name, value in self._average():
                    parameters[name].data = value
                yield
            finally:
                for name, value in trained.items():
                    parameters[name].data = value

    def weights(self) -> dict[str, np.ndarray]:
        module = self._task.network
        tensors = module.state_dict() | _under_all_names(dict(self._average()), module)
        # A module's extra state, `get_extra_state`, is left out: safetensors have arrays alone.
        arrays = {n: t for n, t in tensors.items() if hasattr(t, "detach")}
        return {n: to_numpy(t) for n, t in arrays.items()}

    def _average(self) -> "list[tuple[str, Tensor]]":
        prefix = self._task.exported + "."
        return [(n.removeprefix(prefix), t) for n, t in self._runner.ema.items()]


def _under_all_names(arrays: Mapping[str, Any], network: "nn.Module") -> dict[str, Any]:
    """The arrays, those of shared tensors under each of their names."""
    others = {
        other: arrays[name]
        for name, names in names_of_tensors(network).items()
        if name in arrays
        for other in names
    }
    return {**arrays, **others}


TrainingEngine = JaxEngine | TorchEngine
"""An engine of the loop."""


def make_engine(task: TaskRun) -> TrainingEngine:
    """Makes the engine that the task's configuration names; JAX's platform must be set before."""
    return TorchEngine(task) if task.config.engine == "torch" else JaxEngine(task)


def whole_on_host(tree: PyTree) -> PyTree:
    """Returns every leaf as a whole NumPy array, even where its parts are on several hosts."""

    def one(leaf: ArrayLike) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            if leaf.is_fully_replicated:
                return np.asarray(leaf.addressable_data(0))
            from jax.experimental import multihost_utils

            return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
        return np.asarray(leaf)

    return jax.tree.map(one, tree)
