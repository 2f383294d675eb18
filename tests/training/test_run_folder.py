"""Entries of a run's folder that are not what the run would write there."""

import os
import subprocess

import numpy as np
import pytest
from PIL import Image

from jaxsr.errors import FileAccessError
from jaxsr.train import main
from jaxsr.training.run_folder import RunRecord, check_entries, clear_leftovers

FOLDERS = ("checkpoints", "validation", "profile", "tensorboard", "wandb")
FILES = ("config.json", "metrics.jsonl", "log.txt", "wandb.json", "mlflow.json", "net.safetensors",
         "net.best.safetensors")  # fmt: skip


@pytest.mark.parametrize("name", (*FOLDERS, *FILES))
@pytest.mark.parametrize("kind", ["other", "pipe", "lost"])
def test_an_entry_of_another_kind_is_named(tmp_path, name, kind):
    entry = tmp_path / name
    if kind == "pipe":
        os.mkfifo(entry)
    elif kind == "lost":
        entry.symlink_to(tmp_path / "nowhere")
    elif name in FOLDERS:
        entry.write_bytes(b"")
    else:
        entry.mkdir()
    match = f"{name} is {'a link to nothing' if kind == 'lost' else 'not a '}.*; the run keeps a"
    with pytest.raises(FileAccessError, match=match) as caught:
        check_entries(tmp_path, "net")
    assert "\n" not in str(caught.value)


def test_entries_of_the_right_kind_pass_links_too(tmp_path):
    other = tmp_path / "other disk"
    other.mkdir()
    (other / "log.txt").write_bytes(b"")
    check_entries(tmp_path, "net")
    (tmp_path / "checkpoints").symlink_to(other)
    (tmp_path / "validation").mkdir()
    (tmp_path / "log.txt").symlink_to(other / "log.txt")
    check_entries(tmp_path, "net")


@pytest.mark.parametrize(
    "name",
    [
        "log.txt",
        "net.safetensors",
        "mlflow.json",
        "wandb/latest-run",
        "checkpoints",
        "validation/step-0000009.png",
        "checkpoints/3/notes",
        "checkpoints/.outdated",
        "checkpoints/9.orbax-checkpoint-tmp",
        "mlflow.json",
    ],
)
def test_a_link_out_of_the_folder_is_refused(tmp_path, name):
    """A run's folder may be a stranger's, and its links lead where he wants."""
    mine, out = tmp_path / "mine", tmp_path / "run"
    mine.mkdir() if name == "checkpoints" else mine.write_text("mine")
    (out / name).parent.mkdir(parents=True)
    (out / name).symlink_to(mine)
    with pytest.raises(FileAccessError, match=f"{name} is a link out of the run's folder"):
        check_entries(out, "net")


def test_a_record_of_any_length_is_set_aside(tmp_path):
    (tmp_path / "config.json").touch()
    os.truncate(tmp_path / "config.json", 2**40)  # sparse
    RunRecord(out=tmp_path, content={"family": "span"}).write()
    assert (tmp_path / "config.json.damaged").stat().st_size == 2**40
    assert b"span" in (tmp_path / "config.json").read_bytes()


def test_the_command_says_it_before_the_first_step(tmp_path, capsys):
    (tmp_path / "validation").write_bytes(b"a file")
    assert main(["span", "--steps", "1", "--platform", "cpu", "--out", str(tmp_path)]) == 2
    assert "validation is not a folder; the run keeps a folder there" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"validation", "run.lock"}


def test_a_new_run_replaces_no_weights(tmp_path, capsys):
    weights = tmp_path / "generator.safetensors"
    weights.write_bytes(b"the user's own")
    words = ["span", "--steps", "1", "--platform", "cpu", "--out", str(tmp_path)]
    assert main(words) == 2
    assert main([*words, "--init", str(weights)]) == 2
    assert f"{weights} is of no run in {tmp_path}" in capsys.readouterr().err
    assert weights.read_bytes() == b"the user's own"
    assert {path.name for path in tmp_path.iterdir()} == {"generator.safetensors", "run.lock"}


@pytest.mark.parametrize(
    "name",
    [
        "validation/step-0000001.png",
        "checkpoints/1000/model.pt",
        "checkpoints/7.orbax-checkpoint-tmp/model.pt",
        "checkpoints/.outdated/model.pt",
        "metrics.jsonl",
        "log.txt",
        "mlflow.json",
    ],
)
def test_a_new_run_replaces_nothing_of_the_users(tmp_path, capsys, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"the user's own")
    assert main(["span", "--steps", "1", "--platform", "cpu", "--out", str(tmp_path)]) == 2
    assert f"is of no run in {tmp_path}" in capsys.readouterr().err
    assert path.read_bytes() == b"the user's own"


def test_half_written_files_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / "validation").mkdir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    partials = [
        tmp_path / name
        for name in (
            f".net.safetensors.3.{ended.pid}.partial",
            f"validation/.step-0000003.png.4.{ended.pid}.partial",
        )
    ]
    picture = tmp_path / "validation" / "step-0000003.png"
    for path in (*partials, picture):
        path.write_bytes(b"half")
    clear_leftovers(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [picture]


@pytest.mark.parametrize("out", ["", "runs/a"])
def test_a_run_among_its_photos_is_refused(tmp_path, capsys, out):
    """Its validation's pictures became data: no resume fitted, and the next run trained on them."""
    for level, name in enumerate(("data", "val")):
        (tmp_path / name).mkdir()
        ramp = np.indices((256, 256), np.uint8)[level]
        Image.fromarray(ramp).save(tmp_path / name / "a.png")
    words = ["span", "--platform", "cpu", "--val", str(tmp_path / "val"), "--steps", "1"]
    data = tmp_path / "data"
    assert main([*words, "--data", str(data), "--out", str(data / out)]) == 2
    assert f"lies in data={data}, whose photos are searched" in capsys.readouterr().err
    assert [path.name for path in data.iterdir()] == ["a.png"]
