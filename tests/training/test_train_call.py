"""`jaxsr.train` in Python: the same run as the command's."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import jaxsr
from jaxsr.errors import FileAccessError, InputError
from jaxsr.interop.out_of_memory import OutOfMemoryError
from jaxsr.train import main
from jaxsr.training.start import _one_run
from jaxsr.training.train_call import _words
from tests.training.user_tasks import Fit


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
from tests.training.user_tasks import Fit

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


def test_arguments_that_are_not_json_are_refused():
    with pytest.raises(InputError, match=r"optimizer_args=.* is not JSON"):
        jaxsr.train("span", optimizer_args={"a": object()})
