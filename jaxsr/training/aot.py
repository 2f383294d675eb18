"""A family's train steps compiled for a TPU that is not there: `jaxsr.train … --aot v5e:2x4`."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from jaxsr.interop import mesh as meshes
from jaxsr.interop.aot.chips import Topology
from jaxsr.interop.aot.compile import Ahead, abstract, compile_ahead
from jaxsr.interop.aot.search import largest_batch
from jaxsr.runtime.aot import conclude, prepare
from jaxsr.training.engines import StepPrograms
from jaxsr.training.task import Task


class AheadSteps:
    """The steps of a task on a topology, by phase and batch."""

    def __init__(self, task: Task, topology: Topology) -> None:
        """Args:
          task: its configuration names the mesh, which the topology must have the devices for.
          topology: where to compile to.

        Raises:
          DeviceError: the mesh needs more devices.
        """
        self._task, self._topology = task, topology
        self.mesh = meshes.make_mesh(task.config.mesh_shape, topology.devices)
        self._programs = StepPrograms(task, self.mesh)
        with task.batches(0, host=0, hosts=1) as batches:
            self._rows = next(iter(batches))
        self._constants = jax.eval_shape(lambda: dict(task.constants(None)))

    def compile(
        self, phase: str, *, batch: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Ahead:
        """Compiles one phase's step.

        Args:
          phase: by its name.
          batch: samples over all devices. Default: the configuration's.
          options: for the compiler.
        """
        rows = batch or self._task.config.batch
        state = abstract(jax.eval_shape(self._programs.initial_state), self._programs.shardings)
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

    def every_phase(self) -> Iterator[Ahead]:
        """Each phase of the run."""
        for phase, _ in self._task.phases:
            yield self.compile(phase)


def run(family: Any, config: Any) -> int:
    """What the command does with `--aot`; returns its exit status, 1 where something is refused.

    Raises:
      ValueError, FileNotFoundError: the topology or the data cannot be used.
    """
    topology = prepare(config)
    config = fitted(config, topology)
    task = family.build(config)
    steps = AheadSteps(task, topology)
    reports = []
    for ahead in steps.every_phase():
        reports.append(ahead)
        print(f"{ahead.name}: {ahead.error or 'compiles'}", flush=True)
    largest = {}
    if config.aot_largest:
        step = config.mesh_shape.devices * config.accumulate
        for (phase, _), first in zip(task.phases, reports, strict=True):
            found, trials = largest_batch(
                lambda rows, phase=phase: steps.compile(phase, batch=rows),
                first,
                batch=config.batch,
                step=step,
                precision=0.05,
            )
            largest[first.name] = {"batch": found, "trials": trials}
    return conclude(reports, config, largest=largest)


def fitted(config: Any, topology: Topology) -> Any:
    """The configuration over all of the topology's devices, unless it names a mesh itself."""
    if config.mesh_shape.devices > 1:
        return config
    return dataclasses.replace(config, mesh=str(len(topology.devices)))
