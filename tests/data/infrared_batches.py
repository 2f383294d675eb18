"""Batches of infrared images, as a run has them."""

from typing import Any, Literal

from jaxsr.data.infrared import Infrared
from jaxsr.data.infrared_items import InfraredItems
from jaxsr.data.prefetch import BatchStream
from jaxsr.training.task_batches import step_batches
from jaxsr.training.task_data import TaskData


def infrared_data(
    data: Infrared, *, seed: int = 0, channels: Literal[1, 3] = 3, resident: bool = False
) -> TaskData:
    """The images as items."""
    items = InfraredItems(data, channels)
    return TaskData.open(items, name=data.source, seed=seed, threads=2, resident=resident)


def infrared_batches(
    data: Infrared,
    *,
    seed: int,
    channels: Literal[1, 3] = 3,
    form: Literal["image", "index"] = "image",
    global_batch: int,
    start_step: int = 0,
    **hosts: Any,
) -> BatchStream:
    """A host's batches, of images or of their numbers."""
    items = infrared_data(data, seed=seed, channels=channels, resident=form == "index")
    return step_batches(items, batch=global_batch, start_step=start_step, numbered=True, **hosts)
