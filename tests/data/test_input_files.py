"""One walk for every command: regular files are listed, everything else is named."""

import os
import socket
from pathlib import Path

import pytest

from jaxsr.data.input_files import list_files
from jaxsr.data.sources import find_sources


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Two files, and everything that must not be opened."""
    root = tmp_path / "in"
    touch(root / "b" / "one.png")
    touch(tmp_path / "elsewhere" / "two.png")
    touch(root / ".hidden.png")
    (root / "a").symlink_to(root / "b")  # before it in the alphabet
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "self").symlink_to(root)
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "gone.png").symlink_to(root / "nowhere.png")
    (root / "zero.png").symlink_to("/dev/zero")
    os.mkfifo(root / "pipe.png")
    monkeypatch.chdir(root)  # a socket's address is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket.png")
    return root


def test_files_are_listed_and_the_rest_is_named(folder):
    listing = list_files(folder)
    names = [path.relative_to(folder).as_posix() for path in listing.files]
    assert names == ["b/one.png", "linked/two.png"]
    reasons = {path.name: reason for path, reason in listing.passed_over}
    assert reasons.pop("a") == f"the same folder as {folder / 'b'}"
    assert reasons.pop("self") == f"the same folder as {folder}"
    assert reasons == {
        "loop.png": "a link to itself",
        "pipe.png": "a FIFO, not a file",
        "socket.png": "a socket, not a file",
        "zero.png": "a device, not a file",
    }
    assert [(path.name, reason) for path, reason in listing.unreadable] == [
        ("gone.png", "No such file or directory")
    ]


def test_special_files_by_name_are_problems(folder, tmp_path):
    inputs = find_sources([str(folder / "pipe.png"), "/dev/zero"], out=tmp_path / "out")
    assert inputs.sources == []
    assert [reason for _, reason in inputs.problems] == [
        "a FIFO, not a file",
        "a device, not a file",
    ]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", [2**31 - 1, 13_000])
def test_training_names_them_and_opens_none(folder, size, caplog):
    from jaxsr.data.photos import open_photos
    from tests.restoration.test_bad_input import header_only_png

    (folder / "b" / "claims.png").write_bytes(header_only_png(size, size))
    with pytest.raises(ValueError, match="no image in"):
        open_photos(folder, crop=1, on_bad_file="skip")
    for name in ("pipe.png", "zero.png", "socket.png", "loop.png"):
        assert f"passed over {folder / name}" in caplog.text


def test_results_of_an_earlier_run_are_no_inputs(tmp_path):
    for name in ("a.png", "a_x4.png", "b.jpg", "deep/c.png", "deep/c_x4.png", "d_x4.png"):
        touch(tmp_path / name)
    inputs = find_sources([str(tmp_path)], out=tmp_path, suffix="_x4")
    names = [source.relative.as_posix() for source in inputs.sources]
    assert names == ["a.png", "b.jpg", "d_x4.png", "deep/c.png"]
    assert inputs.notes() == [
        f"passed over: 2 results of an earlier run: {tmp_path / 'a_x4.png'}, "
        f"{tmp_path / 'deep' / 'c_x4.png'}"
    ]
    elsewhere = find_sources([str(tmp_path)], out=tmp_path / "out", suffix="_x4")
    assert len(elsewhere.sources) == 6


@pytest.mark.parametrize("pattern", ["in/*", "in/**"])
def test_a_glob_takes_what_the_shells_does(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    for name in ("in/a.png", "in/deep/b.png", "in/out/a.png"):
        touch(tmp_path / name)
    inputs = find_sources([pattern], out=tmp_path / "in" / "out")
    names = [source.path.as_posix() for source in inputs.sources]
    assert [n for n in names if "out" not in n] == ["in/a.png", "in/deep/b.png"]
    assert ("in/out/a.png" in names) == (pattern == "in/**")
    assert not inputs.problems and not inputs.notes()


def test_result_folders_within_the_input_folder(tmp_path):
    touch(tmp_path / "a.png")
    touch(tmp_path / "masks" / "a.png")
    inputs = find_sources([str(tmp_path)], out=tmp_path, result_folders=("masks", "overlays"))
    assert [source.relative.as_posix() for source in inputs.sources] == ["a.png"]


def test_a_file_that_overlapping_inputs_name_is_taken_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("in/a.png", "in/deep/b.png", "other/c.png"):
        touch(tmp_path / name)
    (tmp_path / "in/link.png").symlink_to("a.png")  # a name of its own
    (tmp_path / "other/a.png").symlink_to("../in/a.png")
    names = ["in/deep/b.png", "in", "in/a.png", str(tmp_path / "in/deep"), "other/*", "in/*.png"]
    inputs = find_sources(names, out=tmp_path / "out")
    assert [source.path.as_posix() for source in inputs.sources] == [
        "in/deep/b.png", "in/a.png", "in/link.png", "other/c.png",
    ]  # fmt: skip
    (line,) = inputs.notes()
    assert line.startswith("passed over: 6 files that an earlier input names: in/deep/b.png, in/a")
