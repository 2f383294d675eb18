"""Folders of results: the user's files stay, and one command at a time writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsr.data.result_folder import RECORD, result_folder
from jaxsr.errors import FileAccessError, InputError


def test_users_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks/a.png").write_text("mine")
    with (
        pytest.raises(InputError, match=r"1 file that jaxsr did not write there \(.*a\.png\)"),
        result_folder(tmp_path, ["b.png", "masks/a.png"]),
    ):
        pass
    assert not (tmp_path / RECORD).read_bytes()


def test_results_of_an_earlier_command_are_replaced(tmp_path: Path) -> None:
    for text in "12":
        with result_folder(tmp_path, ["a.csv", "ü.png"]):
            (tmp_path / "a.csv").write_text(text)
    assert (tmp_path / RECORD).read_bytes().count(b"\n") == 2


def test_a_record_that_a_kill_cut_short_goes_on(tmp_path: Path) -> None:
    with result_folder(tmp_path, ["a", "b"]):
        (tmp_path / "a").write_text("1")
    content = (tmp_path / RECORD).read_bytes()
    (tmp_path / RECORD).write_bytes(content[:-9])
    for _ in range(2):
        with result_folder(tmp_path, ["a", "b"]):
            (tmp_path / "b").write_text("2")


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
