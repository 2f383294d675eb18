"""Checkpoints in a loop of the user's own: plain numbers, interrupts, steps that failed."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsr.interop.checkpoint import CheckpointError, Checkpoints
from jaxsr.interop.train.step import TrainState
from jaxsr.interop.weights import export_weights, read_metadata, read_weights

STATE = {"w": np.ones(2)}


def test_steps_and_metrics_may_be_arrays_and_folders_texts(tmp_path):
    with Checkpoints(str(tmp_path), metric="psnr") as checkpoints:
        checkpoints.save(np.int64(1), STATE, {"psnr": jnp.float32(3), "loss": np.float64(2)})
        checkpoints.save(jnp.asarray(2), STATE, {"psnr": np.float32(5)})
    with Checkpoints(tmp_path, metric="psnr") as checkpoints:
        assert (checkpoints.steps, checkpoints.best_step) == ([1, 2], 2)
        assert checkpoints.metrics(1) == {"psnr": 3.0, "loss": 2.0}
    path = str(tmp_path / "a.safetensors")
    export_weights(path, STATE, metadata={"step": 3})
    assert read_weights(path)[0]["w"].tolist() == [1, 1] and read_metadata(path) == {"step": 3}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": 1.0}, r"the metrics \(loss\) lack 'psnr', which ranks the checkpoints; add it"),
        ({"psnr": "high"}, "the metric 'psnr' is not a number: 'high'"),
        ({"psnr": np.ones(2)}, "the metric 'psnr' is not a number"),
    ],
)
def test_metrics_that_cannot_rank_are_one_line(tmp_path, metrics, message):
    with (
        Checkpoints(tmp_path, metric="psnr") as checkpoints,
        pytest.raises(CheckpointError, match=message),
    ):
        checkpoints.save(1, STATE, metrics)


def test_metrics_that_come_after_the_state_are_not_dropped(tmp_path):
    with Checkpoints(tmp_path, metric="psnr") as checkpoints:
        checkpoints.save(1, STATE)
        with pytest.raises(CheckpointError, match="step 1 with other metrics; save each step once"):
            checkpoints.save(1, STATE, {"psnr": 9.0})


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_state_that_was_saved_stays_where_the_loop_ends_by_an_error(tmp_path, error):
    with pytest.raises(error), Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": jnp.ones((1000, 1000))})
        raise error
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore({"w": jnp.zeros((1000, 1000))})
    assert restored is not None and restored[0] == 1


def test_a_state_behind_a_failed_step_is_refused(tmp_path):
    zero = jnp.zeros((), jnp.int32)
    state = TrainState(
        step=zero + 4, params={"w": jnp.ones(2)}, buffers={}, optimizers={}, ema={}, key=zero,
        failed_step=zero + 5,
    )  # fmt: skip
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match=r"step 5 failed .* go on from"):
            checkpoints.save(20, state)
        checkpoints.save(4, state.replace(failed_step=zero))
        checkpoints.wait()
        assert checkpoints.steps == [4]
