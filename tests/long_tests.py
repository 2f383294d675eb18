"""Writes long_tests.txt (tests that `pytest` leaves out) and slow_tests.txt (that CI leaves out).

    pytest -p tests.long_tests -n 0 -m "not slow"

measures the processor time of every test, its child processes' included, which a busy machine
changes little. Tests that do not run stay in the lists.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

LEAST_S = {"slow": 2.5, "long": 1.5}
_measured: dict[str, float] = {}


def listed(mark: str) -> set[str]:
    """The names of the tests that a list gives that mark."""
    return {*_file(mark).read_text().splitlines()}


def _file(mark: str) -> Path:
    return Path(__file__).with_name(f"{mark}_tests.txt")


def _processor_s() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = _processor_s()
    result = yield
    _measured[item.nodeid] = _processor_s() - began
    return result


def pytest_sessionfinish() -> None:
    write(_measured)


def write(seconds: dict[str, float]) -> None:
    """Writes the lists anew.

    Args:
      seconds: the processor time of each test that ran.
    """
    most = float("inf")
    for mark, least in LEAST_S.items():
        names = listed(mark) - {*seconds} | {n for n, s in seconds.items() if least <= s < most}
        _file(mark).write_text("".join(f"{name}\n" for name in sorted(names)))
        most = least
