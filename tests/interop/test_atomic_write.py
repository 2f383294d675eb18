"""Files appear complete or not at all, whichever way they are written."""

import itertools
import os
import subprocess
import sys

import pytest

from jaxsr.interop.atomic_write import (
    AtomicFile,
    _machine,
    atomic_path,
    atomic_write,
    check_file,
    clear_partials,
)


def write_by_path(path, content):
    with atomic_path(path) as partial:
        partial.write_bytes(content)


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


@pytest.mark.parametrize("write", [atomic_write, write_by_path])
def test_nothing_is_written_through_a_link_in_the_half_written_files_place(
    tmp_path, monkeypatch, write
):
    """A stranger's folder may have it for every number of a process."""
    monkeypatch.setattr("jaxsr.interop.atomic_write._numbers", itertools.repeat(7))
    other, name = tmp_path / "other", f".a.json.7.{os.getpid()}-{_machine()}.partial"
    other.write_bytes(b"somebody's")
    for ending in ("", ".json"):
        (tmp_path / f"{name}{ending}").symlink_to(other)
    write(tmp_path / "a.json", b"new")
    assert other.read_bytes() == b"somebody's"
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert not (tmp_path / "a.json").is_symlink()


@pytest.mark.parametrize("length", [240, 244, 250, 255])
def test_names_may_be_as_long_as_the_file_system_has_them(tmp_path, length):
    path = tmp_path / ("é" * ((length - 5) // 2) + "x" * ((length - 5) % 2) + ".json")
    atomic_write(path, b"x")
    with atomic_path(path) as partial:
        partial.write_bytes(b"y")
    assert path.read_bytes() == b"y" and [*tmp_path.iterdir()] == [path]


LEFT = """
import os, sys
from pathlib import Path
from jaxsr.interop.atomic_write import AtomicFile, atomic_path
file = AtomicFile(Path("a.json"))
with atomic_path(Path("b.mp4")) as path:
    path.write_bytes(b"half")
    os.kill(os.getpid(), 9)
"""


def test_what_dead_processes_left_is_cleared(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", LEFT], cwd=tmp_path, env=os.environ)
    dead.wait()
    left = {*tmp_path.iterdir()}
    assert len(left) == 2 and {path.suffix for path in left} == {".partial", ".mp4"}
    (tmp_path / f".folder.1.{dead.pid}-{_machine()}.partial").mkdir()
    kept = [AtomicFile(tmp_path / "c")]  # of a living process
    others = [tmp_path / f".d.1.{dead.pid}-0123abcd.partial", tmp_path / f".e.{dead.pid}.partial"]
    users = [tmp_path / name for name in (".d.partial", "e.1.2.partial", ".f.1.x.partial.mp4")]
    for path in (*others, *users):
        path.touch()
    before = {*tmp_path.iterdir()}
    clear_partials(tmp_path)
    assert before - {*tmp_path.iterdir()} == left
    clear_partials(tmp_path, is_locked=True)
    assert before - {*tmp_path.iterdir()} == left | {*others}
    kept[0].finish()


def test_threads_may_write_one_name_at_once(tmp_path):
    """They shared a temporary file: the second rename failed."""
    files = [AtomicFile(tmp_path / "a") for _ in range(2)]
    for file in files:
        file.stream.write(b"whole")
    for file in files:
        file.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
