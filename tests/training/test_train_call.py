"""`jaxsr.train` in Python: the same run as the command's."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional as F

import jaxsr
from jaxsr.errors import FileAccessError, InputError, UserError
from jaxsr.interop.errors import StateOfCallError
from jaxsr.interop.out_of_memory import OutOfMemoryError
from jaxsr.interop.weights import read_metadata
from jaxsr.train import main
from jaxsr.training.cli_options import parse_command_line
from jaxsr.training.generators import generator_states
from jaxsr.training.start import _one_run
from jaxsr.training.train_call import _words
from tests.training.user_tasks import Fit, Points


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_class_trains_and_goes_on_as_the_command_does(folder):
    class Local(Fit):
        """Not to be imported by its name."""

    options = {"width": 4, "tensorboard": False, "out": folder / "run"}
    assert jaxsr.train(Local, steps=3, **options).finished
    run = jaxsr.train(Local, steps=6, resume=True, **options)
    assert (run.finished, run.folder) == (True, folder / "run")
    words = ["tests.training.user_tasks:Fit", "--width", "4", "--out", "command"]
    assert main(words) == 0
    expected = load_file("command/network.safetensors")
    for name, array in load_file(run.folder / "network.safetensors").items():
        np.testing.assert_array_equal(array, expected[name])
    assert run.weights == run.folder / "network.safetensors"
    assert run.metrics[-1]["step"] == 6
    assert {"error", "ratio", "loss"} <= run.validation.keys()
    assert run.validation["error"] == run.metrics[-1]["validation/error"]


def test_a_snapshot_of_hard_links_stays_as_it_is(folder):
    options = {"steps": 1, "width": 4, "tensorboard": False}
    jaxsr.train(Fit, out=folder / "run", **options)
    subprocess.run(["cp", "-al", folder / "run", folder / "snapshot"], check=True)
    before = {p: p.read_bytes() for p in (folder / "snapshot").rglob("*") if p.is_file()}
    jaxsr.train(Fit, out=folder / "run", resume=True, **options | {"steps": 2})
    assert {p: p.read_bytes() for p in before} == before
    assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) > len(
        (folder / "snapshot" / "metrics.jsonl").read_text().splitlines()
    )


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_settings_of_a_run_end_with_it(engine):
    options = {"steps": 1, "tensorboard": False, "engine": engine, "deterministic": True}
    run = jaxsr.train(Fit, **options, matmul_precision="highest")
    assert jax.config.jax_default_matmul_precision is None
    assert not torch.are_deterministic_algorithms_enabled()
    # Flags for GPUs do not count on a CPU.
    assert "xla_gpu" not in (run.folder / "config.json").read_text()
    with pytest.MonkeyPatch.context() as context:
        context.delenv("XLA_FLAGS", raising=False)
        context.setattr("jaxsr.runtime.setup._has_gpu", lambda: True)
        with pytest.raises(InputError, match=r"--deterministic needs XLA_FLAGS=.* before JAX"):
            jaxsr.train(Fit, **options)


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_modes_of_torch_around_a_call_do_not_count(engine):
    options = {"steps": 2, "tensorboard": False, "engine": engine}
    plain = jaxsr.train(Fit, out="plain", **options).metrics[-1]["validation/loss"]
    with torch.inference_mode():
        assert jaxsr.train(Fit, out="inference", **options).metrics[-1]["validation/loss"] == plain
    with torch.no_grad(), torch.autocast("cpu"):
        assert jaxsr.train(Fit, out="autocast", **options).metrics[-1]["validation/loss"] == plain
        assert torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
    with torch.device("meta"), pytest.raises(InputError, match="default device is 'meta'"):
        jaxsr.train(Fit, out="meta", **options)


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_generators_of_the_caller_stay_as_they_were(engine):
    before = generator_states()
    jaxsr.train(Fit, steps=2, tensorboard=False, engine=engine)
    assert generator_states() == before


def test_a_resumed_run_does_not_read_the_weights_that_it_began_with(folder):
    options = {"width": 4, "tensorboard": False}
    jaxsr.train(Fit, out="first", steps=1, **options)
    jaxsr.train(Fit, out="run", init="first", steps=1, **options)
    Path("first").rename("elsewhere")
    assert jaxsr.train(Fit, out="run", resume=True, steps=2, **options).finished
    shutil.rmtree("run/checkpoints")
    with pytest.raises(UserError, match="first"):
        jaxsr.train(Fit, out="run", resume=True, steps=2, **options)


def test_a_branch_killed_before_its_first_step_ends_as_one_that_was_not(folder, caplog):
    options = {"width": 4, "tensorboard": False, "validate_every": 2}
    jaxsr.train(Fit, out="first", steps=4, **options)
    branch = {**options, "branch_from": "first", "steps": 8, "lr": 3.0}
    uninterrupted = jaxsr.train(Fit, out="uninterrupted", **branch)

    def killed(run, *_):
        run.checkpoints.wait()
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="killed"):
        patch.setattr("jaxsr.training.loop._Run.steps", killed)
        jaxsr.train(Fit, out="run", **branch)
    with pytest.raises(UserError, match="at step 4 already; give more than steps=4"):
        jaxsr.train(Fit, out="run", resume=True, steps=4)
    run = jaxsr.train(Fit, out="run", resume=True)
    assert not caplog.messages
    best, expected = (f"{each.folder}/network.best.safetensors" for each in (run, uninterrupted))
    assert read_metadata(Path(best))["step"] == read_metadata(Path(expected))["step"]
    np.testing.assert_equal(load_file(best), load_file(expected))
    assert [line["step"] for line in run.metrics] == [
        line["step"] for line in uninterrupted.metrics
    ]


class ShortTypes(Fit):
    class Config(jaxsr.TaskConfig):
        batch = 8
        steps: int = 1
        width: int = 4
        tensorboard = False


class ShortTypesInEpochs(ShortTypes):
    class Config(ShortTypes.Config):
        steps = None  # pyright: ignore[reportAssignmentType]
        epochs: "float" = 0.5


@pytest.mark.parametrize("task", [ShortTypes, ShortTypesInEpochs])
@pytest.mark.parametrize("length", [{"epochs": 0.5}, {"steps": 1}], ids=["epochs", "steps"])
def test_a_run_whose_length_is_in_the_other_unit_goes_on(folder, task, length):
    jaxsr.train(task, out="run", **length)
    assert jaxsr.train(task, out="run", resume=True).finished
    (unit,) = length
    assert jaxsr.train(task, out="branch", branch_from="run", **{unit: 2}).finished
    name = f"{task.__module__}:{task.__qualname__}"
    Path("mine.yaml").write_text(f"family: {name}\n{unit}: 1\n")
    _, _, config = parse_command_line([name, "--config", "mine.yaml"])
    other = {"steps", "epochs"} - {unit}
    assert (getattr(config, unit), getattr(config, other.pop())) == (1, None)


class WithSet(Fit):
    class Config(Fit.Config):
        parts: frozenset[int] = frozenset({1})


def test_an_option_that_no_resume_could_read_is_refused_before_the_run(folder):
    with pytest.raises(UserError, match=r"parts is .*, which config.json cannot hold"):
        jaxsr.train(WithSet, out="run", steps=1)
    assert not Path("run/config.json").exists()


class HalfPrecision(Fit):
    """With a buffer of bfloat16, which NumPy lacks."""

    def network(self):
        network = super().network()
        network.register_buffer("third", torch.tensor([1 / 3], dtype=torch.bfloat16))
        return network


def test_both_engines_save_a_buffer_of_bfloat16():
    for engine in "jax", "torch":
        options = {"tensorboard": False, "engine": engine, "out": engine}
        jaxsr.train(HalfPrecision, steps=1, **options)
        run = jaxsr.train(HalfPrecision, steps=2, resume=True, **options)
        assert safetensors.torch.load_file(run.weights)["third"].dtype == torch.bfloat16


def test_plain_torch_loads_weights_under_two_names():
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    network.append(nn.Linear(3, 3)).append(network[1]).append(nn.Linear(3, 1))
    network[2].weight = network[0].weight
    network.register_buffer("calls", torch.zeros(()), persistent=False)  # of Fit's loss

    class Local(Fit):
        def network(self):
            return network

    run = jaxsr.train(Local, steps=1, tensorboard=False)
    weights = safetensors.torch.load_file(run.weights)
    assert [*weights] and {*weights} == {*network.state_dict()}
    assert torch.equal(weights["3.running_mean"], weights["1.running_mean"])
    network.load_state_dict(weights)


class Texts(Fit):
    class Config(Fit.Config):
        prompt: str = "new york"
        words: tuple[str, ...] = ("a b", "c")
        name: str | None = None


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"prompt": "newyork"}, "prompt='new york', not newyork"),
        ({"words": ("ab", "c")}, r"words=\('a b',c\), not \(ab,c\)"),
        ({"name": "None "}, "name=None, not 'None '"),
    ],
)
def test_texts_of_other_spaces_are_other_options(option, message):
    options = {"tensorboard": False, "out": "run"}
    jaxsr.train(Texts, steps=1, **options)
    with pytest.raises(InputError, match=message):
        jaxsr.train(Texts, steps=2, resume=True, **options, **option)
    assert jaxsr.train(Texts, steps=2, resume=True, prompt="new york", **options).finished


class Absent(Fit):
    def metrics(self, network, batch):
        return {"class_iou": (0.0, 0.0), "error": F.mse_loss(network(batch["x"]), batch["y"])}


def test_a_figure_without_a_value_is_nan(folder):
    run = jaxsr.train(Absent, steps=1, width=4, tensorboard=False, out=folder / "run")
    assert np.isnan(run.validation["class_iou"]) and run.validation["error"] > 0
    assert '"validation/class_iou": "nan"' in (folder / "run" / "metrics.jsonl").read_text()


class Cached(nn.Module):
    """A table of the first call, or a factor that a call in training sets, or neither."""

    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(3, 1), kind
        self.cache: dict[str, Any] = {"factor": 1.0}
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.rows = nn.Embedding(4, 3)  # whose indices both calls check

    def forward(self, x):
        x = x + self.rows((x > 0).long())[..., 0]
        if self.kind == "factor" and self.training:
            self.cache["factor"] = 2.0
        if self.kind in ("table", "alike") and "table" not in self.cache:
            is_other = self.training and self.kind == "table"
            self.cache["table"] = torch.ones(3) * (2.0 if is_other else 1.0)
        return self.linear(x * self.cache.get("table", 1)) * self.cache["factor"]


@pytest.mark.parametrize("kind", ["table", "factor", "alike"])
def test_state_of_training_that_a_validation_reads_is_refused(kind):
    class Local(Fit):
        def network(self):
            return Cached(kind)

    options = {"steps": 2, "validate_every": 1, "tensorboard": False, "out": "run"}
    if kind == "alike":
        assert jaxsr.train(Local, **options).finished
        return
    with pytest.raises(StateOfCallError, match=r"cache\['(table|factor)'\].*another order"):
        jaxsr.train(Local, **options)


def test_a_step_that_memory_cannot_hold_is_refused_before_it_runs(folder, monkeypatch):
    class Large(Fit):
        def loss(self, network, batch):
            many = network(batch["x"]).mean() * torch.arange(3000.0)
            return (many[:, None] * many).sort(1).values.mean()

    monkeypatch.setattr("jaxsr.interop.out_of_memory.free_memory_bytes", lambda: 32 * 2**20)
    with pytest.raises(OutOfMemoryError, match=r"the values of a step need at least .* a smaller"):
        jaxsr.train(Large, steps=1, out=folder / "run", tensorboard=False)


def test_one_run_at_a_time(folder):
    with _one_run, pytest.raises(InputError, match=r"another jaxsr\.train runs in this process"):
        jaxsr.train(Fit, steps=1, batch=4, out="runs/b")
    assert not Path("runs/b").exists()
    Path("runs").write_text("mine")
    with pytest.raises(FileAccessError, match="it is not a folder"):
        jaxsr.train(Fit, steps=1, batch=4, out="runs/b")
    assert _one_run.acquire(blocking=False)
    _one_run.release()


def test_runs_that_begin_in_one_second_have_folders_of_their_own(folder, monkeypatch):
    """As a shell starts them in a loop over seeds: all but one were refused."""
    monkeypatch.setattr("time.strftime", lambda *words: "20261130-171515")
    options = {"steps": 1, "batch": 4, "engine": "torch", "tensorboard": False}
    runs = [jaxsr.train(Fit, seed=seed, **options) for seed in range(3)]
    assert [run.folder.name.partition("-171515")[2] for run in runs] == ["", "-2", "-3"]
    assert all(run.weights.is_file() for run in runs)


def test_a_name_and_nested_options(capsys):
    model = {"width": 4, "depth": 2}
    run = jaxsr.train(
        "span", steps=1, batch=4, crop=32, validation_px=64, model=model, tensorboard=False
    )
    assert run.folder.name.startswith("span-")
    assert load_file(run.weights)["conv_cat.weight"].shape == (4, 16, 1, 1)
    assert run.validation["psnr_y"] > 0
    said = " ".join(capsys.readouterr().out.split())
    assert "options: preset quick steps=1 batch=4" in said and "model.width=4" in said


def test_options_become_words():
    options = {"optimizer_args": {"b2": 0.9, "mask": None}, "model": {"width": 4}}
    assert _words(options) == ['--optimizer-args={"b2": 0.9, "mask": null}', "--model.width=4"]
    options = {"mesh": 8, "resume": True, "warmup_steps": 3, "tensorboard": False}
    assert _words(options) == ["--mesh=8", "--resume", "--warmup-steps=3", "--no-tensorboard"]
    options = {"freeze": ("a.*", "b"), "model": {"width": 4, "label_real": (0.0, 1.0)}}
    assert _words(options) == [
        *("--freeze", "a.*", "b", "--model.width=4", "--model.label-real", "0.0", "1.0")
    ]


@pytest.mark.parametrize("option", ["data", "preset", "config", "branch_from", "out"])
def test_none_is_the_default(option, capsys):
    config = parse_command_line(["span", *_words({option: None})])[2]
    assert config == parse_command_line(["span"])[2] and not capsys.readouterr().out
    assert parse_command_line(["span", f"--{option.replace('_', '-')}", "None"])[2] == config


def test_a_run_to_resume_in_no_folder_is_the_newest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--resume found no run of span in runs/"):
        parse_command_line(["span", *_words({"resume": True, "out": None})])


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (Fit, {"stepz": 3}, "unknown option --stepz"),
        (Fit, {"steps": 0}, "steps must be at least 1"),
        (Fit, {"engine": "tf"}, "--engine must be one of jax, torch, got 'tf'"),
        (Fit, {"aot": "v5e:1x1"}, "compiles instead of training; use python -m jaxsr.train"),
        ("spam", {}, "no model family 'spam' to train"),
        (dict, {}, "is not a task; subclass jaxsr.Task"),
    ],
)
def test_wrong_options_are_errors(task, options, message):
    with pytest.raises(InputError, match=message):
        jaxsr.train(task, **options)


def test_training_one_family_imports_no_other():
    code = """
import sys
from jaxsr.training import start
from jaxsr.training.cli_options import parse_command_line
from jaxsr.training.task_run import TaskRun
TaskRun(*parse_command_line(["fast-srgan", "--batch", "4", "--crop", "32"]))
others = "models.llama", "models.hugging_face", "models.mshnet", "generation", "comparison"
print(*(name for name in sys.modules if name.startswith(tuple(f"jaxsr.{o}" for o in others))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


_CELL = """
import sys
import types
import jaxsr
from tests.training.user_tasks import Fit, Points

SETTINGS = types.SimpleNamespace(rate={rate})

def squared(x):
    return {factor} * x * x

class Local(Fit):
    columns = {{"x", "y", "z"}}
    weights = [{factor}, {{"a": 1}}]

    def loss(self, network, batch):
        return SETTINGS.rate * squared(network(batch["x"]) - batch["y"]).mean()

jaxsr.train(Local, steps={steps}, out="run", engine="torch", tensorboard=False, resume={resume})
"""


def test_code_of_a_notebook_is_compared_at_a_resume(folder):
    def remark(**values):
        code = _CELL.format(**{"rate": 1, "factor": 1, "resume": True} | values)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return "resumed with other code in __main__" in done.stderr + done.stdout

    assert not remark(steps=1, resume=False)
    assert not remark(steps=2)
    assert remark(steps=3, factor=3)
    assert not remark(steps=4, factor=3)
    assert remark(steps=5, factor=3, rate=2)


_endless: dict = {}
_endless["a"] = _endless


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer_args": {"a": object()}}, "optimizer_args cannot be JSON"),
        ({"optimizer_args": {(1, 2): 3}}, "optimizer_args cannot be JSON"),
        ({"optimizer_args": {"a": np.float32(1)}}, "optimizer_args cannot be JSON"),
        ({"optimizer_args": _endless}, "optimizer_args cannot be JSON"),
        ({"model": _endless}, "within each other without end"),
        ({"model": {1: 2}}, "unknown option --model.1"),
    ],
)
def test_values_that_a_command_line_cannot_express_are_refused(options, message):
    with pytest.raises(InputError, match=message) as caught:
        jaxsr.train("fast-srgan", steps=1, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("successor", ["nothing", "another run", "a copy without its lock"])
def test_a_run_writes_nothing_where_another_folder_took_the_place_of_its_own(folder, successor):
    jaxsr.train(Fit, steps=2, seed=2, out="other", tensorboard=False)
    if successor != "another run":
        Path("other/run.lock").unlink()

    class Moves(Points):
        reads = 0

        def __getitem__(self, index):
            self.reads += 1
            if self.reads == 3 * 8:
                Path("run").rename("moved")
                if successor != "nothing":
                    Path("other").rename("run")
            return super().__getitem__(index)

    class Moved(Fit):
        def train_data(self):
            return Moves(20)

    before = {path.name: path.read_bytes() for path in Path("other").rglob("*") if path.is_file()}
    with pytest.raises(FileAccessError, match="run was removed, emptied or replaced under the run"):
        jaxsr.train(Moved, steps=6, out="run", validate_every=4, log_every=4, tensorboard=False)
    after = {path.name: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert after == (before if successor != "nothing" else {})
