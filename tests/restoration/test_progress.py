"""Lines of progress, where the output is no terminal."""

import re

import pytest

from jaxsr.restoration import progress as progress_lines
from jaxsr.restoration.progress import Progress

LINE = r"(\S+)(?: of (\S+))? MP, (\S+) MP/s(?:, (\d+) s left)?\n"


@pytest.fixture
def printed_line(monkeypatch, capsys):
    """Parts of the line printed last; there is one for each call."""
    monkeypatch.setattr(progress_lines, "_LINE_EVERY_S", -1.0)
    return lambda: re.fullmatch(LINE, capsys.readouterr().err)


def test_total_and_time_left_where_they_are_known(printed_line):
    progress = Progress(8_000_000)
    progress.add(2_000_000)
    done, total, rate, left = printed_line().groups()
    assert (done, total) == ("2.0", "8.0") and float(left) == pytest.approx(6 / float(rate), abs=1)
    progress.add(7_000_000)  # more than its header says
    assert printed_line().group(1, 2, 4) == ("9.0", None, None)
    progress.close()


def test_no_total_where_nothing_is_known(printed_line):
    progress = Progress(0)
    progress.add(2_000_000)
    assert printed_line().group(1, 2, 4) == ("2.0", None, None)
    progress.close()


def test_an_image_that_fails_takes_its_pixels_back(printed_line, capsys):
    progress = Progress(8_000_000)
    progress.add(2_000_000)
    assert printed_line()
    progress.add(-2_000_000)
    assert progress.pixels == 0 and not capsys.readouterr().err
    progress.add(4_000_000)
    assert printed_line().group(1, 2) == ("4.0", "8.0")
    progress.close()
