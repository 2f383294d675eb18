"""`jaxsr.train … --aot v5e:2x4`: a task's steps compiled ahead of time, without the devices."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from jaxsr.interop import mesh as meshes
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.aot.compile import Ahead, abstract, compile_ahead
from jaxsr.interop.aot.topology import Topology
from jaxsr.runtime.aot import compile_batches, prepare
from jaxsr.training.engines import StepPrograms
from jaxsr.training.fine_tuning import prepare_network
from jaxsr.training.sharding_table import show_sharding
from jaxsr.training.task import Task
from jaxsr.training.task_run import TaskRun
from jaxsr.training.user_code import located_in_users_files


class AheadSteps:
    """The steps of a task on a topology, by phase and batch."""

    def __init__(self, task: TaskRun, topology: Topology) -> None:
        """Args:
          task: its configuration names the mesh, which must fit the topology.
          topology: devices to compile for.

        Raises:
          DeviceError: the mesh needs more devices than the topology has.
        """
        self._task, self._topology = task, topology
        self.mesh = meshes.make_mesh(task.config.mesh_shape, topology.devices)
        self._programs = StepPrograms(task, self.mesh)
        with task.batches(0, host=0, hosts=1) as batches:
            self._rows = next(iter(batches))
        self._constants = jax.eval_shape(dict, task.host_constants())

    @property
    def state_shapes(self) -> PyTree:
        """Returns the shapes and dtypes of the training state."""
        return self._programs.state_shapes()

    @property
    def state_shardings(self) -> PyTree:
        """Returns the sharding of each array of the state."""
        return self._programs.shardings

    def compile(
        self, phase: str, *, batch: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Ahead:
        """Compiles the step of one phase.

        Args:
          phase: name of the phase.
          batch: samples over all devices. Default: the configuration's.
          options: options of the compiler.
        """
        rows = batch or self._task.config.batch
        state = abstract(self._programs.state_shapes(), self._programs.shardings)
        inputs = {
            name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
            for name, array in self._rows.items()
        }
        return compile_ahead(
            self._programs.jit(phase),
            (
                state,
                abstract(inputs, meshes.batch_sharding(self.mesh))
                | abstract(self._constants, meshes.replicated(self.mesh)),
            ),
            self._topology,
            name=f"{self._task.family} {phase}",
            training=True,
            options=options,
        )


def run(name: str, kind: type[Task], config: Any) -> int:
    """Runs the command with `--aot`; returns its exit status, 1 if something is refused.

    Raises:
      UserError: the topology or the data cannot be used.
    """
    topology = prepare(config, deterministic=config.deterministic)
    config = fitted(config, topology)
    task = TaskRun(name, kind, config)
    prepare_network(task.network, task.config)
    steps = AheadSteps(task, topology)
    if meshes.model_devices(steps.mesh) > 1:
        show_sharding(steps.state_shapes, steps.state_shardings)
    with located_in_users_files():
        return compile_batches(
            [
                (lambda rows, phase=phase: steps.compile(phase, batch=rows), config.batch)
                for phase, _ in task.phases
            ],
            config,
            step=config.mesh_shape.row_devices * config.accumulate,
        )


def fitted(config: Any, topology: Topology) -> Any:
    """Spreads the run over all devices of the topology, unless the configuration names a mesh."""
    if config.mesh_shape.devices > 1:
        return config
    return dataclasses.replace(config, mesh=str(len(topology.devices)))
