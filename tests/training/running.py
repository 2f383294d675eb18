"""The steps of a run without its loop."""

import itertools
from typing import Any

from jaxsr.training.engines import make_engine
from jaxsr.training.task import phase_at


def take_steps(family: Any, config: Any) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Metrics of every step of what `family.build` makes, and the exported weights at the end."""
    task = family.build(config)
    engine = make_engine(task)
    metrics = []
    with task.batches(0, host=0, hosts=1) as batches:
        for step, batch in enumerate(itertools.islice(batches, task.config.total_steps)):
            metrics.append(engine.train_step(phase_at(task.phases, step), batch))
    return engine.fetch(metrics), engine.weights()
