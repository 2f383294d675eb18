"""Two engines behind one interface: JAX on a mesh, and plain PyTorch on one device.

Both take the same task, so that the loop above them does not know which one it drives.
"""

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jax.typing import ArrayLike

from jaxsr.errors import InputError
from jaxsr.interop import mesh as meshes
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import RefusedValueError
from jaxsr.interop.hooks import collecting_indices
from jaxsr.interop.out_of_memory import check_program_fits
from jaxsr.interop.sharding_rules import check_rules
from jaxsr.interop.train.gradients import Arrays, select_network
from jaxsr.interop.train.optimizers import OptimizerConfig, make_optimizer, make_schedule
from jaxsr.interop.train.step import TrainState, TrainStep, convert, init_state
from jaxsr.models.outputs import answer_of
from jaxsr.runtime.setup import torch_device
from jaxsr.training.task_run import TaskRun
from jaxsr.training.validation import Network

if TYPE_CHECKING:
    from torch import Tensor, nn

    from jaxsr.interop.train.torch_step import TorchStep

_PREPARATION = 0x70726570  # "prep"

Metrics = Mapping[str, Any]
"""Scalars by `network/name`, those of torch as its tensors."""


def updates_of(task: TaskRun) -> dict[str, int]:
    """How many updates each network gets over the run."""
    updates: dict[str, int] = {}
    for name, steps in task.phases:
        for player in task.objective.phase(name).players:
            updates[player.network] = updates.get(player.network, 0) + steps
    return updates


def preparation_key(root: jax.Array, step: ArrayLike) -> jax.Array:
    """The key of the task's `prepare` in a step, apart from what the networks draw in it."""
    return jax.random.fold_in(jax.random.fold_in(root, step), _PREPARATION)


class StepPrograms:
    """A task's steps as jitted functions on a mesh, whose devices need not be of this machine."""

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

    def initial_state(self) -> TrainState:
        """The state before the first step, on the default device."""
        return self._initial_state(self._model.params, self._model.buffers)

    def state_shapes(self) -> PyTree:
        """Shapes and dtypes of that state; the parameters need no values."""
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
        """The step of a phase, `(state, batch) -> (state, metrics)`; it consumes its state."""

        def step(
            state: TrainState, batch: Mapping[str, Any]
        ) -> tuple[TrainState, Arrays]:  # profiles and caches show its name
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
            )
            return train_step(state, batch)

        return jax.jit(
            step,
            donate_argnums=0,
            out_shardings=(self.shardings, meshes.replicated(self.mesh)),
        )


class JaxEngine:
    """The jitted step on a mesh; the state never leaves the devices but to be saved."""

    def __init__(self, task: TaskRun) -> None:
        self.mesh = meshes.make_mesh(task.config.mesh_shape)
        self._task = task
        self._programs = StepPrograms(task, self.mesh)
        self._state = meshes.place(self._programs.initial_state(), self._programs.shardings)
        self._constants = dict(task.constants(meshes.replicated(self.mesh)))
        self._networks: dict[tuple, Callable] = {}
        self._steps: dict[str, jax.stages.Wrapped] = {}
        self._fits: set[str] = set()
        """Phases whose step has the memory that it needs."""
        # Counted here as well: reading the device's counter would wait for the step.
        self._step = 0

    @property
    def step(self) -> int:
        """Steps done."""
        return self._step

    def compiled(self, phase: str) -> jax.stages.Wrapped:
        """The jitted step of a phase, made once."""
        if phase not in self._steps:
            self._steps[phase] = self._programs.jit(phase)
        return self._steps[phase]

    def place(self, batch: Mapping[str, np.ndarray]) -> dict[str, PyTree]:
        """The host's batch and the task's constants on the devices."""
        return meshes.place_batch(dict(batch), self.mesh) | self._constants

    def train_step(self, phase: str, batch: Mapping[str, np.ndarray]) -> Metrics:
        """One step; metrics may still be on their way."""
        step, placed = self.compiled(phase), self.place(batch)
        if phase not in self._fits:
            program = step.lower(self._state, placed).compile()
            check_program_fits(program, self.mesh.local_devices, "the values of a step")
            self._fits.add(phase)
        self._state, metrics = step(self._state, placed)
        self._step += 1
        return metrics

    def fetch(self, metrics: list[Metrics]) -> list[dict[str, float]]:
        """Waits for metrics of several steps and brings them to the host."""
        return [{n: float(v) for n, v in m.items()} for m in jax.device_get(metrics)]

    def state(self) -> PyTree:
        """All that a checkpoint must hold, as a tree of arrays."""
        return self._state

    def sound_state(self) -> PyTree:
        """`state` after a step that failed: as it was before that step, ready to go on from."""
        return self._state.replace(failed_step=self._state.failed_step * 0)

    def load(self, state: PyTree) -> None:
        """Takes over a tree that `state` returned."""
        self._state = state
        self._step = int(jax.device_get(state.step))

    def exported(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The exported network's parameters (averaged where they are) and buffers, on the host."""
        name = self._task.exported
        state = self._state
        params = {**select_network(state.params, name), **state.ema}
        trees = whole_on_host((params, select_network(state.buffers, name)))
        bare = [{k.removeprefix(name + "."): v for k, v in tree.items()} for tree in trees]
        return bare[0], bare[1]

    def network(self, phase: str) -> Network:
        """The exported network as it answers in a phase, in evaluation mode.

        Its weights are those of the moving average where there is one.
        """
        return _JaxNetwork(self, self._task.network, self._task.task.inputs(phase))

    def forward(self, extra: tuple) -> Callable:
        """The exported network's jitted `forward`, made once for these further inputs."""
        if extra not in self._networks:
            from jaxsr.interop.module import to_jax

            model = to_jax(self._task.network)

            def answer(
                params: Arrays, buffers: Arrays, x: jax.Array, named: Mapping[str, Any]
            ) -> Any:
                key = jax.random.key(0)  # a network that draws in evaluation draws alike each time
                outputs, _ = model.call(params, buffers, (x, *extra), named, rng=key)
                return answer_of(outputs)

            self._networks[extra] = jax.jit(answer)
        return self._networks[extra]

    def method(self, module: "nn.Module", method: str) -> Callable:
        """A method of a module around the exported network, jitted once.

        Its result, and the worst index of each operation, are replicated.
        """
        if (module, method) not in self._networks:
            from jaxsr.interop.module import to_jax

            model = to_jax(module)

            def run(params: Arrays, buffers: Arrays, batch: Arrays, seed: jax.Array) -> PyTree:
                key = jax.random.key(seed)
                with meshes.split_activations(self.mesh, batch), collecting_indices() as indices:
                    outputs, _ = model.apply(
                        params, buffers, batch, rng=key, train=False, method=method
                    )
                return outputs, indices

            self._networks[module, method] = jax.jit(
                run, out_shardings=meshes.replicated(self.mesh)
            )
        return self._networks[module, method]

    def exported_on_mesh(self) -> tuple[Arrays, Arrays]:
        """Parameters (averaged where they are) and buffers of the exported network as `network`."""
        name, state = self._task.exported, self._state
        params = {**select_network(state.params, name), **state.ema}
        trees = params, select_network(state.buffers, name)
        renamed = [{f"network{k.removeprefix(name)}": v for k, v in tree.items()} for tree in trees]
        return renamed[0], renamed[1]

    def weights(self) -> dict[str, np.ndarray]:
        """That network's arrays under its own torch names."""
        params, buffers = self.exported()
        prefix = self._task.exported + "."
        # As in torch's state dictionary.
        left_out = {n.removeprefix(prefix) for n in self._programs.non_persistent}
        return params | {n: array for n, array in buffers.items() if n not in left_out}


class _JaxNetwork:
    """The exported network as it is when it is asked first."""

    def __init__(self, engine: JaxEngine, module: "nn.Module", extra: tuple) -> None:
        self._engine, self.module, self._extra = engine, module, extra

    @functools.cached_property
    def _on_one_device(self) -> tuple[Arrays, Arrays]:
        return jax.device_put(self._engine.exported(), jax.local_devices()[0])

    def __call__(self, images: np.ndarray, **named: np.ndarray) -> np.ndarray:
        params, buffers = self._on_one_device
        return np.asarray(self._engine.forward(self._extra)(params, buffers, images, named))

    def run(
        self, module: "nn.Module", method: str, batch: Mapping[str, np.ndarray], *, seed: int
    ) -> PyTree:
        mesh = self._engine.mesh
        rows = len(next(iter(batch.values())))
        # A last batch that the devices cannot share is computed by each of them.
        shared = rows % (mesh.shape["data"] * mesh.shape["fsdp"]) == 0
        sharding = meshes.batch_sharding(mesh) if shared else meshes.replicated(mesh)
        placed = meshes.place(dict(batch), dict.fromkeys(batch, sharding))
        params, buffers = self._engine.exported_on_mesh()
        run = self._engine.method(module, method)
        result, indices = jax.device_get(run(params, buffers, placed, seed))
        for rule, index in indices.items():
            if index:
                raise RefusedValueError.of(rule, int(index))
        return result


class TorchEngine:
    """Plain PyTorch on one device; batches are prepared by the very kernels of the JAX engine."""

    def __init__(self, task: TaskRun) -> None:
        from jaxsr.interop.train.torch_step import TorchStep

        config = task.config
        self._task = task
        updates = updates_of(task)
        optimizers: Any = task.optimizers(updates)  # refuses those that torch has not
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
            return task.prepare(batch, preparation_key(self._key, step))

        self._prepare = jax.jit(prepare)

    @property
    def step(self) -> int:
        return self._runner.step

    def train_step(self, phase: str, batch: Mapping[str, np.ndarray]) -> Metrics:
        import torch

        prepared = self._prepare({**batch, **self._constants}, self.step)
        # By step number, as the JAX engine's keys: a run that is resumed draws the same.
        seed = self._task.config.seed
        torch.manual_seed(seed << 32 | self.step)
        random.seed(seed << 32 | self.step)
        np.random.seed(np.random.SeedSequence([seed, self.step]).generate_state(4))
        return self._runner.train_step(phase, jax.device_get(prepared))

    def fetch(self, metrics: list[Metrics]) -> list[dict[str, float]]:
        return [{n: float(v) for n, v in m.items()} for m in metrics]

    def state(self) -> PyTree:
        return self._runner.state()

    def sound_state(self) -> PyTree:
        return self.state()

    def load(self, state: PyTree) -> None:
        self._runner.load(state)

    def network(self, phase: str) -> Network:
        module = self._task.network
        return _TorchNetwork(
            self._runner, module, dict(self._average()), self._task.task.inputs(phase)
        )

    def weights(self) -> dict[str, np.ndarray]:
        module = self._task.network
        tensors = module.state_dict() | dict(self._average())
        return {n: t.detach().cpu().numpy() for n, t in tensors.items()}

    def _average(self) -> "list[tuple[str, Tensor]]":
        prefix = self._task.exported + "."
        return [(n.removeprefix(prefix), t) for n, t in self._runner.ema.items()]


class _TorchNetwork:
    """The exported network with its averaged parameters, if there are any."""

    def __init__(
        self,
        runner: "TorchStep",
        module: "nn.Module",
        averaged: "Mapping[str, Tensor]",
        extra: tuple,
    ) -> None:
        self._runner, self.module, self._extra = runner, module, extra
        self._averaged = dict(averaged)

    def __call__(self, images: np.ndarray, **named: np.ndarray) -> np.ndarray:
        import torch

        tensors = self._placed({"": images, **named})
        with self._runner.evaluating():
            inputs = tensors.pop(""), *self._extra
            answer = torch.func.functional_call(self.module, self._averaged, inputs, tensors)
            return answer_of(answer).detach().cpu().numpy()

    def run(
        self, module: "nn.Module", method: str, batch: Mapping[str, np.ndarray], *, seed: int
    ) -> PyTree:
        import torch

        devices = [self._runner.device] if self._runner.device.type == "cuda" else []
        parameters = dict(self.module.named_parameters())
        trained = {name: parameters[name].data for name in self._averaged}
        with self._runner.evaluating(), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            try:
                for name, value in self._averaged.items():
                    parameters[name].data = value
                result = getattr(module, method)(self._placed(batch))
            finally:
                for name, value in trained.items():
                    parameters[name].data = value
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: t.detach().cpu().numpy(), result
        )

    def _placed(self, batch: Mapping[str, np.ndarray]) -> "dict[str, Tensor]":
        return {name: self._runner.place(rows) for name, rows in batch.items()}


Engine = JaxEngine | TorchEngine
"""An engine of the loop."""


def make_engine(task: TaskRun) -> Engine:
    """The engine that the task's configuration names; JAX's platform must be fixed already."""
    return TorchEngine(task) if task.config.engine == "torch" else JaxEngine(task)


def whole_on_host(tree: PyTree) -> PyTree:
    """Every leaf as a whole NumPy array, also where its parts lie on several hosts."""

    def one(leaf: ArrayLike) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            if leaf.is_fully_replicated:
                return np.asarray(leaf.addressable_data(0))
            from jax.experimental import multihost_utils

            return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
        return np.asarray(leaf)

    return jax.tree.map(one, tree)
