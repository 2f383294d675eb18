"""examples/classify: a timm model with mixup and label smoothing trains as in plain torch."""

import numpy as np
import pytest

from tests.examples.plain_torch import load_example, train_jaxsr, train_plain

SMALL = {"model": "test_resnet", "batch": 8, "epochs": None, "steps": 2, "schedule": "constant"}


@pytest.mark.parametrize("mesh", ["8"])
def test_the_same_losses(needs, mesh):
    needs("timm")
    task = load_example("classify").Digits
    expected, _ = train_plain(task, task.Config(**SMALL), 2)
    losses, _ = train_jaxsr(task, task.Config(**SMALL, mesh=mesh))
    np.testing.assert_allclose(losses, expected, rtol=2e-3)  # float32 through BatchNorm and Adam
    assert losses[0] == pytest.approx(expected[0], rel=1e-5)


def test_mixup_shares_sum_to_one_and_differ_by_epoch(needs):
    needs("timm")
    from jaxsr.training.task_data import TaskData

    example = load_example("classify")
    mixed = example.Mixed(example.Pictures(slice(20)), 0.2)
    data = TaskData.open(mixed, name="data")
    targets = np.stack([data.item(3, epoch)["target"] for epoch in range(8)])
    np.testing.assert_allclose(targets.sum(1), 1, atol=1e-6)
    assert len(np.unique(targets, axis=0)) > 4
