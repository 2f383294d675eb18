"""The steps of a run without its loop."""

import itertools
from collections.abc import Callable
from typing import Any

from jaxsr.training.engines import make_engine
from jaxsr.training.phases import phase_at
from jaxsr.training.task import Task
from jaxsr.training.task_run import TaskRun


def take_steps(
    task: type[Task], config: Any, *, change: Callable[[TaskRun], None] = lambda run: None
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Metrics of every step of a task's run, and the exported weights at the end.

    Args:
      task: what to train.
      config: of the run.
      change: done to the run before its engine is made.
    """
    run = TaskRun("tests:Task", task, config)
    change(run)
    engine = make_engine(run)
    metrics = []
    with run.batches(0, host=0, hosts=1) as batches:
        for step, batch in enumerate(itertools.islice(batches, run.config.total_steps)):
            metrics.append(engine.train_step(phase_at(run.phases, step), batch))
    return engine.fetch(metrics), engine.weights()
