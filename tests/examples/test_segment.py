"""examples/segment: a network of segmentation_models_pytorch trains as in plain torch."""

import numpy as np
import pytest

from tests.examples.plain_torch import load_example, train_jaxsr, train_plain

SMALL = {"batch": 4, "steps": 2, "side": 32}


@pytest.mark.parametrize("mesh", ["4"])
def test_the_same_losses(needs, mesh):
    needs("segmentation_models_pytorch")
    task = load_example("segment").Ellipses
    expected, _ = train_plain(task, task.Config(**SMALL), 2)
    losses, _ = train_jaxsr(task, task.Config(**SMALL, mesh=mesh))
    np.testing.assert_allclose(losses, expected, rtol=2e-3)  # float32 through BatchNorm and Adam
    assert losses[0] == pytest.approx(expected[0], rel=1e-5)
