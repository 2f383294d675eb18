"""Messages about differences between processes; `training/test_processes.py` has real jobs."""

import pytest

from jaxsr.interop import agreement
from jaxsr.interop.errors import InputError


@pytest.fixture
def job(monkeypatch):
    """`job(others)`: this process is 0, the others publish these values in turn."""

    def start(*others):
        published = []
        monkeypatch.setattr(agreement.jax.distributed, "is_initialized", lambda: True)

        def exchange(value):
            published.append(value)
            answers = [value, *(rounds[len(published) - 1] for rounds in others)]
            return answers

        monkeypatch.setattr(agreement, "_exchange", exchange)
        monkeypatch.setattr(agreement.platform, "node", lambda: "a")
        return published

    return start


def first_round(host, **groups):
    return {"host": host, "digests": {name: agreement._digest(v) for name, v in groups.items()}}


def test_equal_facts_need_one_round(job):
    published = job([first_round("b", options={"batch": 8})])
    agreement.check_alike({"options": {"batch": 8}})
    assert len(published) == 1


def test_the_odd_one_out_is_named(job):
    facts = {"batch": 16, "lr": 0.1, "seed": 0}
    usual = {"batch": 8, "lr": 0.1}
    job(
        [first_round("b", options=usual), usual],
        [first_round("c", options=usual), usual],
    )
    with pytest.raises(InputError) as error:
        agreement.check_alike({"options": facts})
    assert str(error.value) == (
        "the options of this job's processes differ: process 0 on a has batch 16, not 8; seed 0, "
        "not absent (as process 1 on b); start every process with the same command, data and "
        "versions"
    )


def test_the_first_differing_files_are_named(job):
    files = {f"{k}.png": "10 bytes" for k in range(10)}
    other = {f"{k}.png": "11 bytes" for k in range(5, 12)}
    job([first_round("b", files=other), other])
    with pytest.raises(InputError, match=r"process 1 on b has 0.png absent, not 10 bytes;.*9 more"):
        agreement.check_alike({"files": files})


def test_alone_nothing_is_compared():
    agreement.check_alike({"options": {"batch": 8}})
    with agreement.fail_together():
        pass
    assert not agreement.ends_alone()
