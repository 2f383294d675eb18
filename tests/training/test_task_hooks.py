"""Methods of a task besides network, loss and data, and data that stay in memory."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional as F

from jaxsr.errors import InputError
from jaxsr.train import main
from jaxsr.training.task_batches import step_batches
from jaxsr.training.task_data import TaskData
from jaxsr.training.task_run import TaskRun
from tests.training import hooked_tasks
from tests.training.running import take_steps

HERE = "tests.training.hooked_tasks"
FREE = ("--optimizer", "optax.contrib:schedule_free_sgd")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def losses(task, **options):
    metrics, _ = take_steps(task, task.Config(**options))
    return [step["network/loss"] for step in metrics]


def refused(capsys, *words):
    """The one line that a refused command prints."""
    assert main(list(words)) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def records(out):
    return [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]


def test_prepare_is_compiled_into_the_step_of_both_engines_and_a_mesh():
    one = take_steps(hooked_tasks.Denoise, hooked_tasks.Denoise.Config())[0]
    noise = [step["network/noise"] for step in one]
    assert len({*noise}) == len(noise) and np.allclose(noise, 0.1, atol=0.02)
    options: dict[str, Any]
    for options in ({"mesh": "4"}, {"engine": "torch"}):
        other = take_steps(hooked_tasks.Denoise, hooked_tasks.Denoise.Config(**options))[0]
        for a, b in zip(one, other, strict=True):
            assert a["network/loss"] == pytest.approx(b["network/loss"], rel=1e-4), options
            # The draws are equal: the noise is, but for the order of a sum.
            assert a["network/noise"] == pytest.approx(b["network/noise"], rel=1e-5), options


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_run_with_prepare_goes_on_bit_for_bit(engine):
    words = [f"{HERE}:Denoise", "--engine", engine]
    assert main([*words, "--out", "whole"]) == 0
    assert main([*words, "--out", "parts", "--steps", "2"]) == 0
    assert main([*words, "--out", "parts", "--resume", "--steps", "5"]) == 0
    whole, parts = (load_file(f"{out}/network.safetensors") for out in ("whole", "parts"))
    for name, array in whole.items():
        np.testing.assert_array_equal(parts[name], array)
    (figures,) = (r for r in records("whole") if "validation/loss" in r and r["step"] == 5)
    pixels = torch.from_numpy(hooked_tasks.Photos(6).pixels) / 255
    small = F.interpolate(pixels, size=6, mode="bicubic", antialias=True)
    noisy = F.interpolate(small, size=12, mode="bicubic")
    weight, bias = (torch.from_numpy(whole[name]) for name in ("weight", "bias"))
    expected = F.mse_loss(F.conv2d(noisy, weight, bias, padding=1), pixels).item()
    assert figures["validation/loss"] == pytest.approx(expected, rel=1e-4)


def test_an_optimiser_of_optax_takes_torchs_steps():
    task = hooked_tasks.Momentum
    metrics, weights = take_steps(task, task.Config())
    assert "network/lr" not in metrics[0]
    torch.manual_seed(0)
    network = task(task.Config()).network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    with TaskRun("t:Fit", task, task.Config()).batches(0, host=0, hosts=1) as batches:
        for step in range(6):
            x, y = (torch.from_numpy(next_) for next_ in map(next(batches).get, "xy"))
            optimizer.param_groups[0]["lr"] = 0.1 + (0.01 - 0.1) * min(step, 4) / 4
            optimizer.zero_grad()
            F.mse_loss(network(x), y).backward()
            optimizer.step()
    for name, tensor in network.state_dict().items():
        # float32 sums in another order, through six steps
        np.testing.assert_allclose(weights[name], tensor.numpy(), atol=1e-4, err_msg=name)


def test_a_schedule_free_rule_exports_its_average():
    """The paper's Algorithm of SGD (Defazio et al. 2024, equations 1 to 3), in torch."""
    task, lr, beta = hooked_tasks.ScheduleFree, 0.1, 0.9
    config = task.Config(optimizer="optax.contrib:schedule_free_sgd", lr=lr)
    _, weights = take_steps(task, config)
    torch.manual_seed(0)
    network = task(config).network()
    average = {name: p.detach().clone() for name, p in network.named_parameters()}
    steps = {name: p.clone() for name, p in average.items()}
    with TaskRun("t:Fit", task, config).batches(0, host=0, hosts=1) as batches:
        for step in range(6):
            x, y = (torch.from_numpy(next_) for next_ in map(next(batches).get, "xy"))
            network.zero_grad()
            with torch.no_grad():
                for name, p in network.named_parameters():
                    p.copy_((1 - beta) * steps[name] + beta * average[name])
            F.mse_loss(network(x), y).backward()
            for name, p in network.named_parameters():
                assert p.grad is not None
                steps[name] -= lr * p.grad
                average[name] += (steps[name] - average[name]) / (step + 1)
    for name, tensor in average.items():
        np.testing.assert_allclose(weights[name], tensor.numpy(), atol=1e-5, err_msg=name)
    trained = (1 - beta) * steps["0.weight"] + beta * average["0.weight"]
    assert not np.allclose(weights["0.weight"], trained.numpy(), atol=1e-4)


def test_each_network_may_have_options_of_its_own_on_both_engines():
    runs = {}
    for engine in ("jax", "torch"):
        config = hooked_tasks.SlowCritic.Config(engine=engine)
        runs[engine], _ = take_steps(hooked_tasks.SlowCritic, config)
    for a, b in zip(*runs.values(), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-7)
    assert runs["jax"][-1]["critic/lr"] == pytest.approx(1e-6)
    assert runs["jax"][-1]["generator/lr"] == pytest.approx(1e-2)


def test_data_by_the_samples_numbers():
    task = TaskRun("t:ByNumber", hooked_tasks.ByNumber, hooked_tasks.ByNumber.Config())
    with task.batches(2, host=1, hosts=2) as batches:
        batch = next(batches)
    expected = [np.random.default_rng(2 * 8 + 4 + row).random(3) for row in range(4)]
    np.testing.assert_array_equal(batch["x"], np.array(expected, np.float32))
    assert "sample" not in batch


def open_photos(**options):
    return TaskData.open(hooked_tasks.Photos(), name="My.train_data", seed=3, **options)


def test_items_that_stay_in_memory_are_those_that_are_read_each_time(monkeypatch):
    monkeypatch.setattr(hooked_tasks.Photos, "reads", 0)
    config = hooked_tasks.Denoise.Config()
    ways = {"off": open_photos(), "host": open_photos().kept("host", config)}
    for cache in (config.cache_bytes, 0):
        ways[f"{cache} bytes"] = open_photos().kept(
            "host", hooked_tasks.Denoise.Config(cache_gb=cache and cache / 2**30)
        )
    taken = {}
    for name, data in ways.items():
        with step_batches(data, batch=4, start_step=1) as batches:
            taken[name] = [next(batches)["image"] for _ in range(9)]
    for images in taken.values():
        np.testing.assert_array_equal(images, taken["off"])
    hooked_tasks.Photos.reads = 0
    with step_batches(ways["host"], batch=4, start_step=0) as batches:
        for _ in range(9):
            next(batches)
    assert hooked_tasks.Photos.reads == 0


def test_auto_takes_the_device_where_the_items_fit():
    config = hooked_tasks.Denoise.Config(cache="auto")
    run = TaskRun("t:Denoise", hooked_tasks.Denoise, config)
    assert run.train.resident and run.train.cache is None
    beside = open_photos().kept("auto", dataclasses.replace(config, resident_gb=0))
    assert beside.cache is not None and not beside.resident


@pytest.mark.parametrize(
    ("options", "ahead"), [({}, 4), ({"prefetch": 2}, 2), ({"prefetch": 0}, 0)]
)
def test_so_many_batches_are_begun_ahead(options, ahead):
    class Numbers(hooked_tasks.TakesNumbers):
        begun = 0

        def begin(self, first, count):
            self.begun += 1
            return super().begin(first, count)

    source = Numbers()
    data = TaskData.open(source, name="My.train_data")
    with step_batches(data, batch=2, start_step=0, **options) as batches:
        next(batches)
    assert source.begun == 1 + ahead


def test_a_thread_makes_the_batches_of_functions_and_items_ahead():
    def batch_of(step):
        return {"x": np.full((4, 2), step)}

    def pad(items):
        return {"x": np.stack([item["image"] for item in items])}

    for source, options in ((batch_of, {}), (hooked_tasks.Photos(), {"collate": pad})):
        data = TaskData.open(source, name="My.train_data", **options)
        plain, ahead = [], []
        for kind, into in ((data, plain), (data.threaded("prefetch=3"), ahead)):
            with step_batches(kind, batch=4, start_step=2, prefetch=3) as batches:
                into += [next(batches)["x"] for _ in range(6)]
        np.testing.assert_array_equal(ahead, plain)


@pytest.mark.parametrize(
    "cache", ["device", *(pytest.param(c, marks=pytest.mark.slow) for c in ("host", "auto"))]
)
def test_a_cache_changes_no_step(cache):
    task = hooked_tasks.Numbered
    for options in ({}, {"mesh": "4"}, {"engine": "torch"}):
        plain, kept = losses(task, **options), losses(task, cache=cache, **options)
        assert kept == pytest.approx(plain, rel=1e-6), options


def test_a_validation_of_its_own_ranks_the_checkpoints():
    assert main([f"{HERE}:WholePictures", "--out", "run", "--validate-every", "1"]) == 0
    weights = load_file("run/network.safetensors")
    level = 3 * (weights["layer.weight"].item() + weights["layer.bias"].item())
    assert records("run")[-1]["validation/level"] == pytest.approx(level, rel=1e-5)
    assert len(list(Path("run/validation").glob("*.png"))) == 5
    assert Path("run/network.best.safetensors").exists()


def test_a_task_of_jaxsrs_may_be_extended():
    task, model = hooked_tasks.SlowFastSRGAN, {"width": 4, "depth": 1}
    quick = task.presets["quick"]
    config = dataclasses.replace(
        quick, model=dataclasses.replace(quick.model, **model), steps=2, batch=4, crop=32, ema=0.0
    )
    metrics, _ = take_steps(task, config)
    expected = config.lr * metrics[0]["generator/grad_norm"]  # no gradient is as large as the clip
    assert metrics[0]["generator/update_norm"] == pytest.approx(expected, rel=1e-5)
    assert "generator/lr" not in metrics[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["Momentum", "--engine", "torch"],
            "Momentum.optimizer('network') is a transformation of optax, which torch.optim has no "
            "twin of; use --engine jax, or return an OptimizerConfig",
        ),
        (["Momentum", "--lr-factor", "*=2"], "lr_factor scales the options' learning rate, and"),
        (
            ["ScheduleFree", *FREE, "--ema", "0.9"],
            "a schedule-free rule averages the weights itself",
        ),
        (["ScheduleFree", *FREE, "--lr-factor", "*=2"], "averages its own steps, which factors of"),
        (["PartlyScheduleFree"], "a schedule-free rule must move all parameters of its network"),
        (["NoOptimizer"], "NoOptimizer.optimizer('network') returned a str; return an optax"),
        (["TakesOurName"], "TakesOurName.train_data has sample, a name that prepare gets the"),
        (["PrepareOfOne"], "PrepareOfOne.prepare takes other arguments than (self, batch, key)"),
        (["CountsInPrepare"], "CountsInPrepare.prepare changes self.calls, which a compiled step"),
        (["CountsInArray"], "CountsInArray.prepare changes self.calls, which a compiled step"),
        (["NumpyInPrepare"], "NumpyInPrepare.prepare draws from random, numpy.random or torch"),
        (["FailingPreparation"], "KeyError: 'picture' (hooked_tasks.py:"),
        (
            ["Denoise", "--cache", "host", "--workers", "1"],
            "workers=1 are processes, which cannot share",
        ),
        (["Denoise", "--cache", "device", "--resident-gb", "0"], "cache=device needs 0.00 GiB for"),
        (["ByNumber", "--cache", "host"], "cache=host is for items by number that fit one another"),
        (["Fit", "--prefetch", "2"], "Fit.train_data draws from random, numpy.random or torch, wh"),
        (["ByNumber", "--prefetch", "2"], "prefetch=2 is for items by number and functions of"),
        (["ByNumber", "--workers", "1"], "ByNumber.train_data makes its batches in threads"),
    ],
)
def test_what_is_refused_is_one_line(capsys, words, message):
    assert message in refused(capsys, f"{HERE}:{words[0]}", *words[1:])


@pytest.mark.parametrize(
    ("method", "value", "rule"),
    [
        ("files", "['a']", "a dictionary of texts by name ("),
        ("files", "None", "a dictionary of texts by name ("),
        ("files", "{b'a': 'b', 'c': 'd'}", "a dictionary of texts by name ("),
        ("files", "{'a': 3}", "a dictionary of texts by name ("),
        ("describe", "{'a': np.float32(1)}", "a dictionary of numbers and text, by name ("),
        ("describe", "3", "a dictionary of numbers and text, by name ("),
        ("describe", "{1: 2}", "a dictionary of numbers and text, by name ("),
        ("summary", "None", "a list of lines of text ("),
        ("summary", "[1]", "a list of lines of text ("),
    ],
)
def test_results_of_another_type_are_one_line(capsys, method, value, rule):
    words = [f"{HERE}:Returns", "--method", method, "--value", value]
    assert f"Returns.{method} must return {rule}" in refused(capsys, *words)
    assert not Path("runs").exists()


@pytest.mark.parametrize("source", ["torch", "numpy", "random"])
@pytest.mark.parametrize(
    "option", [["--cache", "host"], ["--cache", "device"], ["--prefetch", "2"]], ids="".join
)
def test_data_that_draw_in_a_thread_are_refused_at_any_item(capsys, option, source):
    words = [f"{HERE}:LaterDraws", "--source", source, *option]
    assert "LaterDraws.train_data draws from random, numpy.random or" in refused(capsys, *words)


def test_data_may_draw_in_a_thread_from_a_generator_of_their_own():
    kind, off = hooked_tasks.LaterDraws, losses(hooked_tasks.LaterDraws, source="own")
    for options in {"cache": "host"}, {"prefetch": 2}:
        assert losses(kind, source="own", **options) == off


def test_fixed_items_must_be_alike():
    ragged = [{"x": np.zeros(2)}, {"x": np.zeros(3)}]
    data = TaskData.open(ragged, name="My.train_data", threads=1)
    with step_batches(data, batch=2, start_step=0) as batches, pytest.raises(InputError) as error:
        next(batches)
    assert "item 1 has 'x' of shape (3,) float32, item 0 of shape (2,)" in str(error.value)


def test_extra_state_is_left_out_of_the_weights():
    def change(run):
        network = run.network
        kind = type(network)
        extra = {"get_extra_state": lambda self: {"calls": 3}, "set_extra_state": lambda *_: None}
        network.__class__ = type(kind.__name__, (kind,), extra)

    config = hooked_tasks.Denoise.Config(engine="torch", steps=1)
    weights = take_steps(hooked_tasks.Denoise, config, change=change)[1]
    assert {*weights} == {*take_steps(hooked_tasks.Denoise, config)[1]}
