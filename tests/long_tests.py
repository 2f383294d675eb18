"""Writes long_tests.txt: the tests that take long, which `pytest` leaves out and CI runs.

    pytest -p tests.long_tests -n 0 -m "not slow"

measures the processor time of every test, its child processes' included, which a busy machine
changes little.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

LIST = Path(__file__).with_suffix(".txt")
_LEAST_S = 1.5
_long: list[str] = []


def _processor_s() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = _processor_s()
    result = yield
    if _processor_s() - began >= _LEAST_S:
        _long.append(item.nodeid)
    return result


def pytest_sessionfinish() -> None:
    LIST.write_text("".join(f"{name}\n" for name in sorted(_long)))
