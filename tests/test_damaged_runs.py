"""Runs whose folders were damaged, edited or mixed, resumed by the command."""

import json
import os
import shutil
from pathlib import Path

import pytest

from jaxsr.interop import Checkpoints
from jaxsr.interop.errors import CheckpointError
from jaxsr.interop.weights import read_weights
from tests.test_train import TINY, finished, records, refused, run

__all__ = ["finished"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.sample(1)
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda p: p.write_bytes(b"")])
def test_a_damaged_configuration_is_replaced_by_the_checkpoint_s(
    damage, caplog, finished, tmp_path
):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    before = json.loads((out / "config.json").read_text())
    damage(out / "config.json")
    assert run("--resume", "--out", out) == 0
    assert "the copy in the newest checkpoint is used" in caplog.text
    after = json.loads((out / "config.json").read_text())
    before["options"] |= {name: after["options"][name] for name in ("out", "resume")}
    assert after == before | {"digest": after["digest"]}
    assert (out / "config.json.damaged").exists() == (damage is not Path.unlink)


@pytest.mark.parametrize("part", ["checkpoints", "config.json"])
def test_checkpoints_of_another_run_are_refused(part, capsys, finished, tmp_path):
    """They have the same shapes and sound digests, and the run went on with them."""
    out, other = tmp_path / "run", tmp_path / "other"
    assert run(*TINY, "--out", other, "--mesh", 2, "--ema", 0.9, "--seed", 1) == 0
    shutil.copytree(finished, out)
    if part == "checkpoints":
        shutil.rmtree(out / part)
        shutil.copytree(other / part, out / part)
    else:
        shutil.copy(other / part, out / part)
    before = (out / "config.json").read_bytes()
    line = refused(capsys, "--resume", "--out", out, "--steps", 6)
    seeds = "seed=1, not 0" if part == "checkpoints" else "seed=0, not 1"
    assert f"{out}/checkpoints/4 is of another run: it has {seeds}; put back" in line
    assert (out / "config.json").read_bytes() == before


def test_a_damaged_configuration_without_a_checkpoint_is_one_line(capsys, finished, tmp_path):
    shutil.copy(finished / "config.json", tmp_path / "config.json")
    flip(tmp_path / "config.json")
    line = refused(capsys, "--resume", "--out", tmp_path)
    assert "is damaged, or was edited" in line
    # It depends on the byte whether what is left can be read.
    line = refused(capsys, "--config", tmp_path)
    assert "is damaged, or was edited" in line or "is not the configuration of a run" in line


@pytest.mark.parametrize("name", ["config.json", "generator.best.safetensors"])
def test_a_file_of_terabytes_in_a_run_is_set_aside(name, finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    os.truncate(out / name, 2**40)
    assert run("--resume", "--out", out, "--steps", 5) == 0
    assert (out / f"{name}.damaged").stat().st_size == 2**40
    assert (out / name).stat().st_size < 2**30


def test_damaged_records_and_best_weights_are_set_aside(capsys, caplog, finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    path = out / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"step": 2', b'"step": 3')
    path.write_bytes(b"".join(lines) + b"\xff\xfe\n" + lines[0][:20])
    flip(out / "generator.best.safetensors")
    assert run("--resume", "--out", out, "--steps", 6) == 0
    messages = capsys.readouterr().err
    assert "metrics.jsonl: 3 damaged lines (2, 7, 8) are left out" in caplog.text
    assert "metrics.jsonl has no lines of steps 2\n" in caplog.text
    assert "generator.best.safetensors is damaged" in messages
    assert [r["step"] for r in records(out) if "generator/loss" in r] == [1, 3, 4, 5, 6]
    assert (out / "metrics.jsonl.damaged").exists()
    assert (out / "generator.best.safetensors.damaged").exists()
    # The weights of step 4, where the run went on, are exported again.
    figures = {r["step"]: r["validation/psnr_y"] for r in records(out) if "validation/psnr_y" in r}
    best = max((4, 6), key=lambda step: figures[step])
    assert read_weights(out / "generator.best.safetensors")[1]["step"] == best


@pytest.mark.parametrize("twice", [True, False])
def test_records_that_a_run_would_not_write_are_left_out(twice, caplog, finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    path = out / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines * 2 if twice else [*lines[1:], lines[0]]))
    assert run("--resume", "--out", out, "--steps", 5) == 0
    assert "damaged lines" in caplog.text and (out / "metrics.jsonl.damaged").exists()
    steps = [r["step"] for r in records(out) if "generator/loss" in r]
    assert steps == ([1, 2, 3, 4, 5] if twice else [2, 3, 4, 5])


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(capsys, finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    shutil.rmtree(out / "checkpoints")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    line = refused(capsys, "--resume", "--out", out, "--steps", 6)
    assert f"{out}/checkpoints has no checkpoint to resume, though generator.safetensors" in line
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    for path in out.glob("*.safetensors"):
        path.unlink()
    assert run("--resume", "--out", out, "--steps", 4) == 0
    assert "has no checkpoint yet: it begins again at step 0" in capsys.readouterr().err
    assert [r["step"] for r in records(out) if "generator/loss" in r] == [1, 2, 3, 4]


def test_weights_are_exported_after_a_checkpoint(monkeypatch, tmp_path):
    """Or else a run that was killed between them could not be told from one that lost it."""
    saved = Checkpoints.save

    def fails_late(self, *arguments):
        saved(self, *arguments)
        monkeypatch.setattr(Checkpoints, "wait", fails)

    def fails(self):
        raise CheckpointError("no space is left")

    monkeypatch.setattr(Checkpoints, "save", fails_late)
    assert run(*TINY, "--out", tmp_path / "run") != 0
    assert not [*tmp_path.glob("run/*.safetensors")]
