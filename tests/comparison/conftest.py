"""Subjects that the comparison's tests share."""

import pytest
import torch

from tests.comparison.faults import make_workload


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Networks this small wait for their threads longer than they compute, on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def subject():
    """`subject(family)`: a small network with fixed inputs."""
    made = {}

    def make(family: str):
        if family not in made:
            made[family] = make_workload(family)
        return made[family]

    return make
