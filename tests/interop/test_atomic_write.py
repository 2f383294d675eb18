"""Files appear complete or not at all, whichever way they are written."""

import os
import subprocess

import pytest

from jaxsr.interop.atomic_write import (
    AtomicFile,
    atomic_path,
    atomic_write,
    check_file,
    clear_partials,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_bytes_replace_the_file_before(tmp_path):
    atomic_write(tmp_path / "a.json", b"old")
    atomic_write(tmp_path / "a.json", b"new")
    assert (tmp_path / "a.json").read_bytes() == b"new" and names(tmp_path) == ["a.json"]


def test_a_write_that_fails_leaves_the_file_before(tmp_path, monkeypatch):
    atomic_write(tmp_path / "a.json", b"old")

    def full(descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(tmp_path / "a.json", b"new")
    assert (tmp_path / "a.json").read_bytes() == b"old" and names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("write", [check_file, lambda path: atomic_write(path, b"x")])
@pytest.mark.parametrize(
    ("name", "reason"), [("folder", "Is a directory"), ("absent/a", "No such file or directory")]
)
def test_errors_name_the_file_that_was_to_be_written(tmp_path, write, name, reason):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=reason) as error:
        write(tmp_path / name)
    assert error.value.filename == str(tmp_path / name) and error.value.filename2 is None
    assert names(tmp_path) == ["folder"]
    check_file(tmp_path / "a")
    assert names(tmp_path) == ["folder"]


def test_a_stream_has_no_name_before_it_is_finished(tmp_path):
    file = AtomicFile(tmp_path / "a.png")
    file.stream.write(b"x")
    assert names(tmp_path) != ["a.png"]
    file.finish()
    assert names(tmp_path) == ["a.png"]
    other = AtomicFile(tmp_path / "b.png")
    other.abandon()
    assert names(tmp_path) == ["a.png"]


def test_a_path_keeps_the_ending_and_goes_with_an_error(tmp_path):
    with atomic_path(tmp_path / "a.mp4") as partial:
        assert partial.suffix == ".mp4"
        partial.write_bytes(b"x")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "b.mp4") as partial:
        partial.write_bytes(b"x")
        raise RuntimeError
    assert names(tmp_path) == ["a.mp4"]


@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
def test_what_is_not_a_file_is_never_replaced(tmp_path, kind):
    import socket

    path = tmp_path / "target"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
    else:
        path.symlink_to("/dev/full")
    for write in (lambda: atomic_write(path, b"x"), lambda: check_file(path)):
        with pytest.raises(OSError, match="is not a regular file; name another"):
            write()
    with pytest.raises(OSError, match="is not a regular file"), atomic_path(path):
        pass
    assert not path.is_file() and [*tmp_path.iterdir()] == [path]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("far/file")
    atomic_write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "file").read_bytes() == b"new"


@pytest.mark.parametrize("length", [240, 244, 250, 255])
def test_names_may_be_as_long_as_the_file_system_has_them(tmp_path, length):
    path = tmp_path / ("é" * ((length - 5) // 2) + "x" * ((length - 5) % 2) + ".json")
    atomic_write(path, b"x")
    with atomic_path(path) as partial:
        partial.write_bytes(b"y")
    assert path.read_bytes() == b"y" and [*tmp_path.iterdir()] == [path]


def test_what_dead_processes_left_is_cleared(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = {
        f".a.json.{dead.pid}.partial": False,
        f".b.mp4.{dead.pid}.partial.mp4": False,
        f".c.json.{os.getpid()}.partial": True,
        ".d.partial": True,
        "e.partial": True,
    }
    for name in names:
        (tmp_path / name).touch()
    clear_partials(tmp_path)
    assert {name: (tmp_path / name).exists() for name in names} == names


def test_threads_may_write_one_name_at_once(tmp_path):
    """They shared a temporary file: the second rename failed."""
    files = [AtomicFile(tmp_path / "a") for _ in range(2)]
    for file in files:
        file.stream.write(b"whole")
    for file in files:
        file.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
