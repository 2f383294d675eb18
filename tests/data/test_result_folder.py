"""Folders of results: the user's files stay, and one command at a time writes."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from jaxsr.data.result_folder import RECORD, content_digest, result_folder
from jaxsr.errors import FileAccessError, InputError
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.sealed_json import seal


def test_users_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks/a.png").write_text("mine")
    with (
        pytest.raises(InputError, match=r"1 file that jaxsr did not write there, .* \(.*a\.png\)"),
        result_folder(tmp_path, ["b.png", "masks/a.png"]),
    ):
        pass
    assert not (tmp_path / RECORD).read_bytes()


def test_results_of_an_earlier_command_are_replaced(tmp_path: Path) -> None:
    for text in "123":
        with result_folder(tmp_path, ["a.csv", "ü.png", "masks"]):
            (tmp_path / "a.csv").write_text(text)
            (tmp_path / "masks").mkdir(exist_ok=True)
            (tmp_path / f"masks/{text}.png").write_text(text)
    assert len([*(tmp_path / "masks").iterdir()]) == 3


def change(path: Path) -> None:
    path.write_text("mine")


@pytest.mark.parametrize(
    "edit",
    [
        lambda out: change(out / "a.csv"),
        lambda out: change(out / "masks/1.png"),
        lambda out: change(out / "masks/2.png"),
        lambda out: (out / "masks/1.png").unlink(),
        lambda out: ((out / "a.csv").unlink(), (out / "a.csv").mkdir()),
    ],
)
def test_results_that_the_user_changed_stay(tmp_path: Path, edit: Callable[[Path], object]) -> None:
    def write() -> None:
        with result_folder(tmp_path, ["a.csv", "masks"]):
            (tmp_path / "a.csv").write_text("1")
            (tmp_path / "masks").mkdir(exist_ok=True)
            (tmp_path / "masks/1.png").write_text("1")

    write()
    edit(tmp_path)
    before = sorted(
        (path, path.is_file() and path.read_text()) for path in tmp_path.rglob("[a1-9]*")
    )
    with pytest.raises(InputError, match=r"1 file that jaxsr did not .* or that was changed since"):
        write()
    after = sorted(
        (path, path.is_file() and path.read_text()) for path in tmp_path.rglob("[a1-9]*")
    )
    assert before == after


def test_a_result_that_the_user_removed_is_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        with result_folder(tmp_path, ["a.csv"]):
            assert not (tmp_path / "a.csv").exists()
            (tmp_path / "a.csv").write_text("1")
        (tmp_path / "a.csv").unlink()


def test_a_name_that_was_not_written_is_the_users(tmp_path: Path) -> None:
    with result_folder(tmp_path, ["a.csv"]):
        pass
    (tmp_path / "a.csv").write_text("mine")
    with pytest.raises(InputError, match="1 file that jaxsr did not write there"):
        result_folder(tmp_path, ["a.csv"]).__enter__()


def test_results_of_a_command_that_failed_midway_are_replaced(tmp_path: Path) -> None:
    for text in "123":
        with suppress(KeyboardInterrupt), result_folder(tmp_path, ["a.csv"]):
            atomic_write(tmp_path / "a.csv", text.encode())
            if text == "2":
                raise KeyboardInterrupt
    assert (tmp_path / "a.csv").read_text() == "3"


KILLED = """
import os, sys
from pathlib import Path
from jaxsr.data.result_folder import result_folder
from jaxsr.interop.atomic_write import atomic_path, atomic_write

out = Path(sys.argv[1])
with result_folder(out, ["a.csv", "b.csv", "masks", "clip.mp4"]):
    atomic_write(out / "a.csv", b"1")
    with atomic_path(out / "clip.mp4") as path:
        path.write_bytes(b"1")
    (out / "masks").mkdir(exist_ok=True)
    for number in "123":
        atomic_write(out / f"masks/{number}.png", b"1")
    os._exit(9)
"""


def test_a_killed_command_may_leave_a_folder_of_two_commands(tmp_path: Path) -> None:
    with result_folder(tmp_path, ["masks"]):
        (tmp_path / "masks").mkdir()
        for number in "1234":
            atomic_write(tmp_path / f"masks/{number}.png", b"2")
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    with result_folder(tmp_path, ["masks"]):
        (tmp_path / "masks/4.png").unlink()
    with result_folder(tmp_path, ["masks"]):
        pass


@pytest.mark.parametrize("changed", ["", "a.csv", "b.csv", "clip.mp4", "masks/2.png", "masks/mine"])
def test_what_a_killed_command_wrote_is_known(tmp_path: Path, changed: str) -> None:
    def run() -> int:
        return subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode

    assert run() == 9
    if changed:
        (tmp_path / changed).write_text("mine")
    with suppress(InputError), result_folder(tmp_path, ["a.csv", "b.csv", "masks", "clip.mp4"]):
        assert not changed
    assert run() == (1 if changed else 9)
    assert not changed or (tmp_path / changed).read_text() == "mine"


HALF = """
import os, sys
from pathlib import Path
from jaxsr.interop.atomic_write import AtomicFile

for name in ("a.csv", "masks/1.png", "elsewhere/1.png"):
    AtomicFile(Path(sys.argv[1]) / name)
os._exit(9)
"""


def test_files_that_a_killed_command_left_half_written_are_removed(tmp_path: Path) -> None:
    """One in a folder of masks was a file of the user's, and refused the folder for ever."""
    (tmp_path / "far").mkdir()
    (tmp_path / "out").mkdir()
    out = tmp_path / "out"
    with result_folder(out, ["masks"]):
        (out / "masks").mkdir()
    (out / "elsewhere").symlink_to(tmp_path / "far")
    subprocess.run([sys.executable, "-c", HALF, str(out)], check=False)
    assert len([*tmp_path.rglob("*.partial")]) == 3
    with result_folder(out, ["a.csv", "masks", "elsewhere/2.png"]):
        (left,) = tmp_path.rglob("*.partial")
    assert left.parent == tmp_path / "far"  # not through a link out of the folder


def test_a_record_that_a_kill_cut_short_goes_on(tmp_path: Path) -> None:
    with result_folder(tmp_path, ["a", "b"]):
        atomic_write(tmp_path / "a", b"1")
    content = (tmp_path / RECORD).read_bytes()
    (tmp_path / RECORD).write_bytes(content[:-9])
    for _ in range(2):
        with result_folder(tmp_path, ["a", "b"]):
            (tmp_path / "b").write_text("2")


def test_links_out_of_the_folder_are_not_results(tmp_path: Path) -> None:
    """A folder of results may be a stranger's."""
    mine, out = tmp_path / "mine", tmp_path / "out"
    mine.mkdir()
    out.mkdir()
    (mine / "a.png").write_text("mine")
    (out / "masks").symlink_to(mine)
    digest = content_digest(mine / "a.png")
    (out / RECORD).write_text(seal({"results": {"masks/a.png": digest}}) + "\n")
    with pytest.raises(InputError, match="did not write"), result_folder(out, ["masks/a.png"]):
        pass


@pytest.mark.parametrize("content", [{"results": 5}, {"results": ["a"]}, {"result": 5}, {}])
def test_lines_of_other_content_say_nothing(tmp_path: Path, content: dict) -> None:
    (tmp_path / RECORD).write_text(seal(content) + "\n")
    (tmp_path / "a").write_text("mine")
    with pytest.raises(InputError, match="did not write"), result_folder(tmp_path, ["a"]):
        pass


def test_a_snapshot_of_hard_links_stays_as_it_is(tmp_path: Path) -> None:
    for text in "12":
        with result_folder(tmp_path, ["a.csv"]), result_folder(tmp_path, ["b.csv"]):
            atomic_write(tmp_path / "a.csv", text.encode())
        if text == "1":
            os.link(tmp_path / RECORD, tmp_path / "snapshot")
            before = (tmp_path / "snapshot").read_bytes()
    assert (tmp_path / "snapshot").read_bytes() == before
    assert (tmp_path / RECORD).read_bytes().startswith(before)
    assert len((tmp_path / RECORD).read_bytes()) > len(before)


def test_one_command_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from jaxsr.data.result_folder import result_folder\n"
        "with result_folder(Path(sys.argv[1])): pass"
    )

    def other() -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    with result_folder(tmp_path), result_folder(tmp_path, ["a"], option="--report"):
        assert "another command is writing to" in other().stderr
    assert other().returncode == 0


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_record_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine").write_text("mine")
    if kind == "link":
        (tmp_path / RECORD).symlink_to("mine")
    else:
        os.mkfifo(tmp_path / RECORD)
    with pytest.raises(FileAccessError, match=RECORD), result_folder(tmp_path, ["a"]):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
