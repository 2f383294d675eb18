"""Results of an earlier run are left alone only where this run would make the same."""

import dataclasses
import errno
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from jaxsr.data.sources import Source
from jaxsr.errors import InputError
from jaxsr.interop.sealed_json import seal, unseal
from jaxsr.restoration import batch
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.made_by import RECORD, MadeBy
from jaxsr.restoration.models import find_model
from jaxsr.restore import main
from tests.restoration import networks


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """`in` with two pictures, and two models' weights."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("in")
    for seed, name in enumerate("ab"):
        pixels = np.random.default_rng(seed).integers(0, 256, (12, 14, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"in/{name}.png")
        torch.manual_seed(seed)
        torch.save(networks.Small().state_dict(), f"{name}.pth")
    return tmp_path


def run(*options: str, weights: str = "a.pth") -> int:
    model = ["--model", "tests.restoration.networks:Small", "--weights", weights]
    return main(["in", "--out", "out", *model, "--engine", "torch", "--platform", "cpu", *options])


def contents(tmp_path):
    return {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.png")}


@pytest.mark.parametrize("target", ["original.png", "new.png"])
def test_no_result_goes_through_a_link(target, pictures, capsys):
    shutil.copy("in/a.png", "original.png")
    before = (pictures / "original.png").read_bytes()
    os.mkdir("out")
    os.symlink(f"../{target}", "out/a.png")
    assert run("--overwrite") == 1
    assert "out/a.png is a link, and the result would replace" in capsys.readouterr().err
    assert (pictures / "original.png").read_bytes() == before
    assert not (pictures / "new.png").exists() and (pictures / "out" / "b.png").exists()


def test_the_same_again_does_nothing(pictures, capsys):
    assert run() == 0
    before = contents(pictures)
    os.remove("out/b.png")  # as a run that was killed leaves it
    assert run() == 0
    assert "left alone: 1 result of this model and options" in capsys.readouterr().out
    assert contents(pictures) == before
    shutil.copy2("a.pth", "copy.pth")
    assert run("--batch", "2", weights="copy.pth") == 0  # neither changes a result
    assert "left alone: 2 results" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["weights", "option", "source", "record", "result"])
def test_what_is_stale_is_not_left_alone(pictures, capsys, change):
    assert run() == 0
    before = contents(pictures)
    options, weights = [], "a.pth"
    if change == "weights":
        weights = "b.pth"
    elif change == "option":
        options = ["--outscale", "3"]
    elif change == "source":
        Image.open("in/a.png").transpose(Image.Transpose.FLIP_TOP_BOTTOM).save("in/a.png")
    elif change == "record":
        os.remove(f"out/{RECORD}")
    else:  # of another program, newer than the line
        shutil.copy("out/b.png", "out/a.png")
        before = contents(pictures)
    capsys.readouterr()
    assert run(*options, weights=weights) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "that this model with these options did not make" in line and "out/a.png" in line
    assert contents(pictures) == before
    assert run(*options, "--overwrite", weights=weights) == 0
    assert run(*options, weights=weights) == 0
    assert (contents(pictures) != before) == (change != "record")


@pytest.mark.parametrize("time_s", [1_000_000_000, 1_900_000_000, None])
def test_results_are_known_by_content_after_a_copy(pictures, capsys, time_s):
    """`tar` keeps whole seconds, and `cp` no time."""
    assert run() == 0
    for path in Path("out").glob("*.png"):
        status = path.stat()
        whole = int(status.st_mtime) if time_s is None else time_s
        os.utime(path, (whole, whole))
    assert run() == 0
    assert "left alone: 2 results" in capsys.readouterr().out


def test_a_report_measures_no_picture_of_another_program(pictures, capsys):
    os.mkdir("truth")
    for name in ("a.png", "b.png"):
        Image.new("RGB", (28, 24)).save(f"truth/{name}")
    assert run("--truth", "truth") == 0
    Image.new("RGB", (28, 24)).save("out/a.png")  # equal to the truth
    capsys.readouterr()
    assert run("--truth", "truth") == 2
    assert "that this model with these options did not make" in capsys.readouterr().err


@pytest.mark.parametrize("moment", ["begun", "noted"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_run_goes_on_after_a_kill_at_any_time(pictures, capsys, moment, is_cut):
    """Also where the results of the run before are still there, and a line was cut."""
    assert run() == 0
    config = RestoreConfig(inputs=("in",), out=Path("out"))
    model = find_model("tests.restoration.networks:Small", weights=Path("a.pth"))
    made_by, source = MadeBy(config, [model]), Path("in/a.png").stat()
    made_by.begin(source, Path("out/a.png"))
    if moment == "noted":  # under another name yet, without the one of the run before
        shutil.copyfile("out/a.png", "out/.a.partial")
        made_by.note(Path("out/a.png"))(Path("out/.a.partial"))
        os.remove("out/a.png")
    if is_cut:
        os.remove("out/b.png")
        with open(f"out/{RECORD}", "ab") as file:
            file.write(b'{"digest": "0123')
    for left_alone in (2 - (moment == "noted") - is_cut, 2):
        capsys.readouterr()
        assert run() == 0
        out = capsys.readouterr().out
        assert (f"left alone: {left_alone} result" in out) == (left_alone > 0)


@pytest.mark.parametrize("written", [[], [1], ["x"] * 3, [None, 2, "a"], 5, {"a": 1}])
def test_lines_of_other_content_cover_nothing(pictures, written):
    assert run() == 0
    record = Path("out", RECORD)
    lines = [unseal(line, source=record) for line in record.read_bytes().splitlines()]
    record.write_text("".join(seal(line | {"written": written}) + "\n" for line in lines))
    assert run() == 2


def test_a_name_by_which_the_format_is_not_known(pictures, capsys):
    os.rename("in/a.png", "in/a.jpg")
    os.remove("in/b.png")
    assert run() == 0
    assert run("--overwrite", weights="b.pth") == 0
    before = [path.read_bytes() for path in (pictures / "out").glob("a.*")]
    assert run() in (1, 2)
    assert "--overwrite replaces" in capsys.readouterr().err
    assert [path.read_bytes() for path in (pictures / "out").glob("a.*")] == before


def test_no_source_is_replaced_by_the_result_of_another(pictures, capsys):
    Image.new("RGB", (12, 14)).save("in/a.bmp")
    before = (pictures / "in/a.png").read_bytes()
    assert run("--overwrite", "--out", "in") == 1
    assert (pictures / "in/a.png").read_bytes() == before
    assert "a.bmp: the result would replace the source in/a.png" in capsys.readouterr().err


def test_a_report_has_no_figures_of_results_that_failed(pictures, monkeypatch):
    """An image that is there already is another model's."""
    os.mkdir("truth")
    for name in ("a.png", "b.png"):
        Image.new("RGB", (28, 24)).save(f"truth/{name}")
    assert run() == 0
    write = batch.write_picture

    def fails_for_a(target, *arguments):
        if target.name == "a.png":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(target, *arguments)

    monkeypatch.setattr(batch, "write_picture", fails_for_a)
    long_ago = time.time() - 1000
    os.utime("out/a.png", (long_ago, long_ago))
    assert run("--overwrite", "--truth", "truth", weights="b.pth") == 1
    (figures,) = json.loads((pictures / "out" / "report" / "figures.json").read_text())["pictures"]
    assert figures["name"] == "b.png"


def test_a_video_is_left_alone_where_the_same_model_made_it(pictures, capsys):
    av = pytest.importorskip("av", reason="videos need PyAV")
    for name in ("a.png", "b.png"):
        os.remove(f"in/{name}")
    with av.open("in/film.mkv", "w") as out:
        stream = out.add_stream("ffv1", rate=5)
        stream.height, stream.width, stream.pix_fmt = 12, 14, "bgr0"
        for shade in (40, 90):
            pixels = np.full((12, 14, 3), shade, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode())
    assert run() == 0
    capsys.readouterr()
    assert run() == 0
    assert "left alone: 1 result of this model" in capsys.readouterr().out
    assert run(weights="b.pth") == 2
    assert "out has 1 result that this model" in capsys.readouterr().err


def test_a_record_that_is_a_link_is_not_followed(pictures, capsys):
    os.mkdir("out")
    (pictures / "mine.txt").write_text("mine")
    os.symlink(pictures / "mine.txt", f"out/{RECORD}")
    assert run() != 0
    assert (pictures / "mine.txt").read_text() == "mine"
    assert not contents(pictures)


def test_two_commands_at_once_do_not_mix_their_results(pictures):
    config = RestoreConfig(inputs=("in",), out=Path("out"))
    models = [
        find_model("tests.restoration.networks:Small", weights=Path(f"{n}.pth")) for n in "aab"
    ]
    first, same, other = (MadeBy(config, [model]) for model in models)
    a, b = (Source(Path(f"in/{name}.png"), Path(f"{name}.png")) for name in "ab")
    first.begin(a.path.stat(), Path("out/a.png"))
    same.begin(a.path.stat(), Path("out/a.png"))
    other.begin(b.path.stat(), Path("out/b.png"))
    with pytest.raises(InputError, match=r"another command wrote out/a\.png meanwhile"):
        other.begin(a.path.stat(), Path("out/a.png"))
    for one in (first, same):
        with pytest.raises(InputError, match=r"another command wrote out/b\.png meanwhile"):
            one.begin(b.path.stat(), Path("out/b.png"))
    MadeBy(config, models[2:]).begin(
        a.path.stat(), Path("out/a.png")
    )  # a later command with --overwrite


def test_a_source_counts_as_it_was_read(pictures, monkeypatch):
    """One that is replaced while the network runs is not taken for the restored one."""
    read = batch.read_picture

    def read_and_replace(path, **options):
        picture = read(path, **options)
        Image.new("RGB", (24, 20), "white").save(path)
        return picture

    with monkeypatch.context() as patches:
        patches.setattr(batch, "read_picture", read_and_replace)
        assert run() == 0
    assert run() == 2
    assert run("--overwrite") == 0
    assert run() == 0


def test_metadata_of_a_file_have_no_order():
    """safetensors gives them in another order in each process."""
    model = find_model("clean")
    assert model.metadata is not None and len(model.metadata) > 2
    turned = dict(reversed(list(model.metadata.items())))
    assert dataclasses.replace(model, metadata=turned).digest == model.digest
    assert dataclasses.replace(model, metadata={**turned, "step": 1}).digest != model.digest
