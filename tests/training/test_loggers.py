"""Loggers get every figure and image of a run, also after a resume; the libraries read them."""

import json
from pathlib import Path

import pytest

from jaxsr.errors import InputError
from jaxsr.models.named_code import check_run_names
from jaxsr.train import main
from jaxsr.training.loggers import make_logger
from jaxsr.training.metrics_logger import Records

RUN = [
    "span", "--batch", "2", "--crop", "32", "--crops-per-photo", "1", "--validation-px", "64",
    "--model.width", "4", "--model.depth", "2", "--log-every", "1", "--out", "run",
    "--schedule", "constant", "--warmup-steps", "0", "--no-tensorboard",
]  # fmt: skip
LOGS = """
import json


class Lines:
    def start(self, folder, options, step):
        self.file = open("lines", "a")
        self._write("start", folder.name, options["batch"], step)

    def figures(self, step, figures):
        self._write(step, sorted(figures))

    def image(self, step, name, image):
        self._write(step, name, str(image.dtype), image.shape[2])

    def close(self):
        self._write("close")
        self.file.close()

    def _write(self, *words):
        self.file.write(json.dumps(words) + "\\n")


class Fails(Lines):
    def figures(self, step, figures):
        raise RuntimeError("no connection")


class Exits(Lines):
    def figures(self, step, figures):
        raise SystemExit("no connection")


class Refuses(Lines):
    def start(self, folder, options, step):
        raise RuntimeError("no account")


class Demanding(Lines):
    def __init__(self, place): ...


class Short:
    def start(self, folder, options, step): ...
"""


@pytest.fixture(autouse=True)
def logs(tmp_path, monkeypatch):
    (tmp_path / "own_logs.py").write_text(LOGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_logger_of_ones_own_gets_all(tmp_path):
    assert main([*RUN, "--steps", "2", "--logger", "own_logs:Lines"]) == 0
    words = ["--resume", "--out", "run", "--steps", "3", "--logger", "own_logs:Lines"]
    assert main(words) == 0
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    starts = [line for line in lines if line[0] == "start"]
    assert starts == [["start", "run", 2, 0], ["start", "run", 2, 2]]
    steps = [line[0] for line in lines if len(line) == 2]
    assert [*dict.fromkeys(steps)] == [1, 2, 3]
    assert [2, "validation", "uint8", 3] in lines and lines[-1] == ["close"]
    assert main(["--resume", "--out", "run", "--steps", "4"]) == 2  # it runs no code of its choice


@pytest.mark.parametrize("kind", ["Fails", "Exits", "Refuses"])
def test_a_logger_that_fails(kind, tmp_path, capsys):
    def records() -> Records:
        return Records(
            tmp_path, start_step=0, total_steps=1, batch=1, options={"batch": 1},
            loggers=[make_logger(f"own_logs:{kind}")],
        )  # fmt: skip

    if kind == "Refuses":
        with pytest.raises(InputError, match=r"Refuses cannot start \(RuntimeError: no account"):
            records()
        return
    run = records()
    for step in (1, 2):
        run.steps(step, "main", {step: {"loss": 1.0}})
    run.close()
    printed = capsys.readouterr().err
    assert printed.count(f"the records of {kind} end here: no connection") == 1
    assert (tmp_path / "metrics.jsonl").read_text().count("loss") == 2


def test_other_names_are_refused():
    with pytest.raises(InputError, match=r"Demanding cannot be made \(TypeError: "):
        make_logger("own_logs:Demanding")
    with pytest.raises(InputError, match="has no method figures"):
        make_logger("own_logs:Short")
    with pytest.raises(InputError, match="logger"):
        make_logger("own_logs:Absent")
    for words in (["--resume"], ["devil:Log"], ["--logger=an.evil:Log"], ["evil:Logger"]):
        with pytest.raises(InputError, match="names the code evil:Log"):
            check_run_names(Path("run"), "span", {"logger": ["wandb", "evil:Log"]}, words)
    for option, name in (("logger", "smp:Log"), ("loss", "timm:f"), ("optimizer", "timm:f"),
                         ("metrics", "optax:f"), ("task", "spandrel:T")):  # fmt: skip
        with pytest.raises(InputError, match=f"names the code {name}"):
            check_run_names(Path("run"), "span", {option: name}, [])
    with pytest.raises(InputError, match="names the code smp:T"):
        check_run_names(Path("run"), "smp:T", {}, [])
    known = {"network": "timm:a", "optimizer": "optax:lion", "schedule": "optax.contrib:x",
             "body": "smp:Unet", "body_args": "{}"}  # fmt: skip
    check_run_names(Path("run"), "span", known, [])
    for words in (["--logger=evil:Log"], ['["evil:Log"]'], ["evil.py:Log"]):
        check_run_names(Path("run"), "span", {"logger": ["evil:Log"]}, words)


def read_mlflow():
    from mlflow.tracking import MlflowClient  # pyright: ignore

    client = MlflowClient()
    (run,) = client.search_runs(["0"])
    return run.data.params["batch"], [m.step for m in client.get_metric_history(
        run.info.run_id, "generator/lr")], run.info.status  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_the_libraries_read_what_was_logged(library, monkeypatch, tmp_path):
    pytest.importorskip(library)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert main([*RUN, "--steps", "2", "--logger", library]) == 0
    assert main(["--resume", "--out", "run", "--steps", "3"]) == 0
    if library == "mlflow":
        batch, steps, status = read_mlflow()
        assert (batch, steps, status) == ("2", [1, 2, 3], "FINISHED")
        return
    folders = sorted(Path("run/wandb").glob("offline-run-*"))
    assert len({folder.name.rpartition("-")[2] for folder in folders}) == 1  # one run, two starts
    assert any(folders[0].glob("files/media/images/*.png"))
    stored = [path.read_bytes() for folder in folders for path in folder.glob("*.wandb")]
    assert stored and all(b"generator/loss" in content for content in stored)
