"""Subjects that the comparison's tests share."""

import pytest

from tests.comparison.faults import make_subject


@pytest.fixture(scope="session")
def subject():
    """`subject(family)`: a small network with fixed inputs."""
    made = {}

    def make(family: str):
        if family not in made:
            made[family] = make_subject(family)
        return made[family]

    return make
