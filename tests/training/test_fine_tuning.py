"""Training from given weights: what fits, what is frozen, and other learning rates."""

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.errors import InputError
from jaxsr.interop.weights import export_weights
from jaxsr.models.load import load_model
from jaxsr.training.engines import make_engine
from jaxsr.training.fine_tuning import freeze, initialise, parse_factors, prepare_network
from jaxsr.training.phases import phase_at
from jaxsr.training.presets import super_resolution
from jaxsr.training.super_resolution import SuperResolutionTask
from jaxsr.training.task_run import TaskRun
from tests.training.example_networks import Enlarger

HERE = "tests.training.example_networks"
CONFIG = dataclasses.replace(
    super_resolution.QUICK,
    network=f"{HERE}:Enlarger", network_args='{"norm": true}', steps=4, batch=4, crop=32,
    lr=1e-3, warmup_steps=0, schedule="constant", check=False, ema=0.9,
    freeze=("head.*", "norm.*", "body.0.*"), lr_factor=("tail.bias=0.5", "tail.*=3"),
)  # fmt: skip


def trained(config):
    """The task, its engine, metrics and weights after all steps."""
    run = TaskRun("super-resolution", SuperResolutionTask, config)
    lines = prepare_network(run.network, run.config)
    before = {n: t.clone() for n, t in run.network.state_dict().items()}
    engine, metrics = make_engine(run), []
    with run.batches(0, host=0, hosts=1) as batches:
        for step in range(run.config.total_steps):
            metrics.append(engine.train_step(phase_at(run.phases, step), next(batches)))
    return before, engine, engine.fetch(metrics), engine.weights(), lines


def is_frozen(name):
    return name.startswith(("head.", "norm.", "body.0."))


@pytest.mark.parametrize("word", ["targets", "clean"])
def test_training_starts_from_the_weights_that_come_with_jaxsr(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = load_model(word).network
    network = copy.deepcopy(trained)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    total = len(network.state_dict())
    assert initialise(network, Path(word))[0].startswith(f"initialised {total} of {total} tensors")
    for name, value in trained.state_dict().items():
        assert torch.equal(value, network.state_dict()[name])
    (tmp_path / word).mkdir()
    (tmp_path / word / "photo.png").touch()
    assert initialise(network, Path(word))  # a folder of images
    load_model(word)
    (tmp_path / word / "network.safetensors").touch()
    with pytest.raises(InputError, match=f"--model {word} names jaxsr's own weights"):
        load_model(word)
    with pytest.raises(InputError, match=f"names jaxsr's own weights, and .*/{word} here; give"):
        initialise(network, Path(word))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "change", [{}, {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.1}]
)
def test_both_engines_freeze_and_scale_alike(change):
    config = dataclasses.replace(CONFIG, **change)
    before, engine, metrics, ours, lines = trained(config)
    _, torch_engine, torch_metrics, theirs, _ = trained(dataclasses.replace(config, engine="torch"))
    assert "the statistics of 1 normalisations" in lines[0]
    for a, b in zip(metrics, torch_metrics, strict=True):
        assert a["generator/loss"] == pytest.approx(b["generator/loss"], rel=1e-4)
        assert a["generator/update_norm"] == pytest.approx(b["generator/update_norm"], rel=1e-3)
    assert ours.keys() == theirs.keys() == before.keys()
    for name, value in before.items():
        # 4 steps of up to 3e-3: Adam turns the rounding of a gradient near 0 into part of a step.
        np.testing.assert_allclose(ours[name], theirs[name], atol=3e-4, err_msg=name)
        same = np.array_equal(ours[name], value.numpy())
        assert same == is_frozen(name), name
        assert np.array_equal(theirs[name], value.numpy()) == is_frozen(name), name
    state = torch_engine.state()["optimizers"]["generator"]
    assert not any(map(is_frozen, state))
    assert not any(is_frozen(n.removeprefix("generator.")) for n in engine.state().params)


@pytest.mark.slow
def test_frozen_weights_compute_in_bfloat16_and_stay():
    config = dataclasses.replace(CONFIG, dtype="bfloat16", mesh="2")
    before, _, metrics, weights, _ = trained(config)
    _, _, single, _, _ = trained(dataclasses.replace(CONFIG))
    assert metrics[0]["generator/loss"] == pytest.approx(single[0]["generator/loss"], rel=5e-2)
    for name in filter(is_frozen, before):
        np.testing.assert_array_equal(weights[name], before[name].numpy(), err_msg=name)


@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_factor_scales_the_learning_rate_as_torchs_groups_do(engine):
    base = dataclasses.replace(CONFIG, freeze=(), lr_factor=(), optimizer="sgd", lr=0.1, steps=1)
    base = dataclasses.replace(base, engine=engine)
    before, _, _, plain, _ = trained(base)
    _, _, _, scaled, _ = trained(dataclasses.replace(base, lr_factor=("tail.bias=0.5", "tail.*=3")))
    for name, factor in (("tail.bias", 0.5), ("tail.weight", 3.0), ("head.weight", 1.0)):
        start = before[name].numpy()
        # Differences of float32 weights.
        np.testing.assert_allclose(scaled[name] - start, factor * (plain[name] - start), atol=1e-7)


def test_weights_that_fit_are_loaded_and_the_others_listed(tmp_path):
    source, target = Enlarger(width=4, depth=3), Enlarger(width=4, depth=2, scale=2)
    path = tmp_path / "weights.pth"
    torch.save({"params": source.state_dict()}, path)
    lines = initialise(target, path)
    assert torch.equal(target.head.weight, source.head.weight)
    assert lines[0] == f"initialised 10 of 12 tensors from {path}"
    assert "2 have another shape in the file: tail.weight (48, 4, 3, 3) instead of" in lines[1]
    assert "4 of the file are not the network's: body.2.first.weight" in lines[2]


def test_a_run_folder_or_a_common_prefix_is_a_source_too(tmp_path):
    source, target = Enlarger(), Enlarger()
    arrays = {f"generator.{n}": t.numpy() for n, t in source.state_dict().items()}
    export_weights(tmp_path / "generator.safetensors", arrays)
    assert len(initialise(target, tmp_path)) == 1
    assert torch.equal(target.tail.weight, source.tail.weight)


def test_weights_that_do_not_fit_at_all_are_refused(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({"stem.weight": torch.zeros(3)}, path)
    with pytest.raises(
        InputError, match=r"no parameter fits .* head\.weight, .*; the file has stem"
    ):
        initialise(Enlarger(), path)
    torch.save({"head.bias": torch.full((4,), torch.nan)}, path)
    with pytest.raises(InputError, match=r"holds NaN or infinity in head\.bias"):
        initialise(Enlarger(), path)
    for dtype in (torch.int8, torch.bool, torch.complex64):
        torch.save({"head.bias": torch.ones(4, dtype=dtype)}, path)
        network = Enlarger()
        before = network.state_dict()["head.bias"].clone()
        with pytest.raises(InputError, match=r"holds (torch\.\w+|complex numbers) .*head\.bias"):
            initialise(network, path)
        assert torch.equal(network.state_dict()["head.bias"], before)


def test_frozen_normalisations_keep_their_statistics_in_training():
    network = Enlarger(norm=True)
    freeze(network, ["norm.*"])
    network.train()(torch.rand(2, 3, 8, 8))
    assert not network.norm.training and network.body.training
    assert network.norm.num_batches_tracked == 0
    other = Enlarger(norm=True)
    freeze(other, ["norm.weight", "norm.bias"])  # the statistics do not match
    assert other.train().norm.training


@pytest.mark.parametrize("entry", ["head.*", "head.*=", "=2", "head.*=0", "head.*=x"])
def test_wrong_factors(entry):
    with pytest.raises(InputError, match="must be PATTERN=FACTOR"):
        parse_factors([entry])
