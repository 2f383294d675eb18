"""The lock of a run's folder: between processes, within one, and where the disk has no locks."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from jaxsr.errors import FileAccessError
from jaxsr.training import run_lock
from jaxsr.training.run_lock import LOCK, check_held, lock_folder

HOLD = """
import sys, time, pathlib
from jaxsr.training.run_lock import lock_folder
with lock_folder(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def quick_beats(monkeypatch):
    monkeypatch.setattr(run_lock, "BEAT_S", 0.1)


def hold(folder) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "locked\n"
    return child


def entry(folder, **changes) -> None:
    content = {"process": 17, "host": "elsewhere", "beat": 3} | changes
    (folder / LOCK).write_bytes(json.dumps(content).encode().ljust(512))


def test_a_killed_holder_frees_the_lock(tmp_path):
    child = hold(tmp_path)
    with pytest.raises(ValueError, match=f"another run, process {child.pid} on"):
        lock_folder(tmp_path).__enter__()
    child.kill()
    child.communicate()
    with lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):  # and an ended one
        pass
    assert (tmp_path / LOCK).read_bytes() == b""


def test_another_folder_in_its_place_is_noticed(tmp_path):
    out, other = tmp_path / "run", tmp_path / "other"
    for folder in (out, other):
        folder.mkdir()
        (folder / LOCK).touch()
    with lock_folder(out):
        check_held(out)
        out.rename(tmp_path / "aside")
        with pytest.raises(FileAccessError, match="removed, emptied or replaced"):
            check_held(out)
        other.rename(out)
        with pytest.raises(FileAccessError, match="removed, emptied or replaced"):
            check_held(out)


def test_two_runs_of_one_process(tmp_path):
    with (
        lock_folder(tmp_path),
        pytest.raises(ValueError, match=f"process {os.getpid()} on"),
        lock_folder(tmp_path),
    ):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_children_do_not_keep_it(tmp_path):
    code = HOLD.replace("time.sleep(60)", "import os; os.fork(); time.sleep(60)")
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "locked\n"
    time.sleep(0.3)
    child.kill()
    child.wait()
    with lock_folder(tmp_path):
        pass
    child.stdout.close()


def test_a_dead_run_of_another_host_is_taken_over(tmp_path, quick_beats):
    entry(tmp_path)
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / LOCK).read_bytes())["process"] == os.getpid()


@pytest.mark.parametrize("has_locks", [True, False])
def test_a_living_run_of_another_host_is_not(tmp_path, quick_beats, monkeypatch, has_locks):
    """Where locks hold on one host alone, or there are none."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    if not has_locks:
        monkeypatch.setattr(fcntl, "lockf", refuse)
    entry(tmp_path)
    later = threading.Timer(0.1, entry, (tmp_path,), {"beat": 4})
    later.start()
    with pytest.raises(ValueError, match="process 17 on elsewhere"), lock_folder(tmp_path):
        pass
    later.join()


def test_the_holder_rewrites_its_entry(tmp_path, quick_beats):
    with lock_folder(tmp_path):
        time.sleep(0.35)
        assert json.loads((tmp_path / LOCK).read_bytes())["beat"] >= 2


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=r"cannot lock .*Read-only file system"):
        lock_folder(tmp_path).__enter__()


def test_a_file_of_the_users_by_that_name_is_left_alone(tmp_path):
    (tmp_path / LOCK).write_text("of value")
    with pytest.raises(FileAccessError, match="did not write; move it"), lock_folder(tmp_path):
        pass
    assert (tmp_path / LOCK).read_text() == "of value"


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_lock_that_is_not_a_file_is_left_alone(tmp_path, kind):
    (tmp_path / "run").mkdir()
    (tmp_path / "mine.txt").write_text("of value")
    if kind == "link":
        (tmp_path / "run" / LOCK).symlink_to(tmp_path / "mine.txt")
    else:
        os.mkfifo(tmp_path / "run" / LOCK)
    with (
        pytest.raises(FileAccessError, match=r"run\.lock is (a link|not a regular file)"),
        lock_folder(tmp_path / "run"),
    ):
        pass
    assert (tmp_path / "mine.txt").read_text() == "of value"
