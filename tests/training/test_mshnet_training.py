"""MSHNet in the training loop: the same steps in both engines, and a run as a user types it."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from jaxsr import train
from jaxsr.detection.detector import load_detector
from jaxsr.errors import InputError
from jaxsr.interop.weights import read_metadata
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.runtime.options import ComputeOptions
from jaxsr.training.engines import make_engine
from jaxsr.training.mshnet import MSHNetTask
from jaxsr.training.presets.mshnet import QUICK
from jaxsr.training.stop_signals import StopRequest
from jaxsr.training.task_run import TaskRun
from tests.training.running import take_steps

THIN = MSHNetConfig(widths=(4, 8, 8), blocks=(1, 1, 1), attention_ratio=4)
SMALL = dataclasses.replace(
    QUICK, model=THIN, epochs=None, steps=8, warmup_epochs=2,
    batch=8, base_size=32, crop_size=32, scenes=16, schedule="constant", lr=5e-4,
)  # fmt: skip


def losses(config):
    metrics, _ = take_steps(MSHNetTask, config)
    return [step["network/loss"] for step in metrics]


def test_a_warm_up_has_a_step_where_a_batch_is_more_than_its_epochs():
    assert dataclasses.replace(SMALL, batch=64).phases(16) == (("warmup", 1), ("main", 7))
    assert dataclasses.replace(SMALL, warmup_epochs=0).phases(16) == (("main", 8),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val": Path("val.txt")}, "is a list of a data set: give --data"),
        ({"on_bad_file": "skip"}, "take the names out of it"),
    ],
)
def test_options_without_effect_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("cache", "resident_gb", "resident"),
    [("auto", 1, True), ("auto", 0, False), ("device", 1, True), ("host", 1, False)],
)
def test_images_that_fit_lie_on_the_device(cache, resident_gb, resident):
    config = dataclasses.replace(SMALL, cache=cache, resident_gb=resident_gb)
    assert MSHNetTask(config).train_data().resident is resident


@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_phase_is_validated_by_what_it_trains(engine):
    run = TaskRun("mshnet", MSHNetTask, dataclasses.replace(SMALL, engine=engine))
    made = make_engine(run)
    image = np.random.default_rng(0).random((1, 3, 32, 32), np.float32)
    with torch.no_grad():
        heads = {
            name: run.network.eval()(torch.from_numpy(image), name).numpy()
            for name in ("warmup", "final")
        }
    assert np.abs(heads["warmup"] - heads["final"]).max() > 1e-2
    for phase, name in (("warmup", "warmup"), ("main", "final")):
        np.testing.assert_allclose(made.network(phase)(image), heads[name], atol=1e-5)


@pytest.mark.slow
def test_jax_equals_torch_through_both_phases():
    assert SMALL.phases(16) == (("warmup", 4), ("main", 4))
    ours = losses(SMALL)
    theirs = losses(dataclasses.replace(SMALL, engine="torch"))
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.slow
def test_a_bfloat16_run_follows_one_in_float32():
    """The network is called with words besides images; only images are cast."""
    short = dataclasses.replace(SMALL, steps=2, warmup_epochs=0)
    rough = losses(dataclasses.replace(short, dtype="bfloat16"))
    # 8 bits of mantissa in every activation, averaged by the loss.
    assert rough == pytest.approx(losses(dataclasses.replace(short, engine="torch")), rel=2e-2)


@pytest.mark.slow
def test_eight_devices_equal_one():
    assert losses(dataclasses.replace(SMALL, mesh="8")) == pytest.approx(losses(SMALL), rel=1e-4)


@pytest.mark.slow
def test_the_command_trains_on_scenes_and_its_weights_detect(tmp_path, monkeypatch):
    # No figures are better than those of the first validation, which is of the warm-up.
    monkeypatch.setattr("jaxsr.training.loop.metric_rank", lambda value, best: 0.0)
    options = (
        "mshnet", "--out", tmp_path, "--steps", 4, "--warmup-epochs", 1, "--batch", 8,
        "--scenes", 16, "--base-size", 32, "--crop-size", 32, "--validate-every", 2,
        "--log-every", 2, "--model.widths", 4, 8, 8, "--model.blocks", 1, 1, 1,
        "--model.attention-ratio", 4, "--no-tensorboard",
    )  # fmt: skip
    assert train.main([str(option) for option in options]) == 0
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {"validation/iou", "validation/pd", "validation/fa"} <= lines[-1].keys()
    load_detector(tmp_path / "network.safetensors", options=ComputeOptions(engine="torch"))
    assert list((tmp_path / "validation").glob("*.png"))
    # The warm-up's judged another head, and no fusion of the heads.
    assert read_metadata(tmp_path / "network.best.safetensors")["phase"] == "main"


@pytest.mark.slow
def test_weights_of_the_warm_up_are_said_to_be(tmp_path, caplog):
    options = ["mshnet", "--preset", "quick", "--scenes", "16", "--out", str(tmp_path / "run")]
    options += ["--batch", "8", "--warmup-epochs", "9", "--steps", "19", "--validate-every", "1"]
    with pytest.MonkeyPatch.context() as context:
        context.setattr(StopRequest, "is_due", lambda self, step: step == 1)
        assert train.main(options) == 0
    load_detector(tmp_path / "run", options=ComputeOptions(engine="torch"))
    assert "its weights are of the warm-up, before the fusion of the heads" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "4", "--epochs", "2"], "either|as steps or as epochs"),
        (["--crop-size", "100"], "crop_size must be a positive multiple of 16, got 100"),
        (["--data", "/nowhere"], "no folder /nowhere"),
        (
            ["--warmup-epochs", "9"],
            r"warmup_epochs=9 takes \d+ steps .* leaves none .* smaller warmup_epochs \(0",
        ),
        (["--cache", "device", "--resident-gb", "0"], "cache=device needs"),
    ],
)
def test_wrong_options(options, message, tmp_path, capsys):
    base = ["mshnet", "--preset", "quick", "--scenes", "16", "--out", str(tmp_path / "run")]
    assert train.main([*base, *options]) == 2
    line = capsys.readouterr().err
    assert re.search(message, line), line
