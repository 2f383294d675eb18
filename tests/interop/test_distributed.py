"""Which environments make a process join a job, and with what; the joining itself is JAX's."""

import subprocess
import sys
import threading
from typing import Any

import jax
import pytest

from jaxsr.interop import distributed, plugin_start


@pytest.fixture(autouse=True)
def _no_claims(monkeypatch):
    """Names are the machine's: tests that run at the same time have the same ones."""
    monkeypatch.setattr(distributed, "_claim_number", lambda *_: None)


SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
TORCHRUN = {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "3"}
OWN = {"JAXSR_COORDINATOR": "h:1", "JAXSR_PROCESSES": "2", "JAXSR_PROCESS": "0"}
POD = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}
AUTO = ()


@pytest.fixture
def join(monkeypatch):
    """`join(environment, tpu=…, platform=…)`: what JAX was asked, or None; and the processes."""

    def start(environment, *, tpu=False, platform="auto", fails=None, hosts=True):
        asked = []

        def initialize(*arguments):
            if fails is not None:
                raise fails
            asked.append(arguments)

        names = (*SLURM, *TORCHRUN, *OWN, *POD, "JAXSR_CLUSTER", "MEGASCALE_NUM_SLICES")
        for name in (*names, "OMPI_COMM_WORLD_SIZE", "TPU_SKIP_MDS_QUERY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(plugin_start, "_TPU_DEVICES", ("/dev/null",) if tpu else ())
        monkeypatch.setattr(jax.distributed, "initialize", initialize)
        monkeypatch.setattr(jax.config, "update", lambda *_: None)
        if hosts:
            monkeypatch.setattr(distributed.socket, "getaddrinfo", lambda *_: [])
        count = distributed.start_if_asked(platform)
        return (asked[0] if asked else None), count

    return start


def test_nothing_is_joined_where_nothing_is_described(join):
    assert join({}) == (None, 1)
    assert join({k: v for k, v in SLURM.items() if k != "SLURM_STEP_NODELIST"}) == (None, 1)
    assert join({**SLURM, "SLURM_NTASKS": "1"}) == (None, 1)
    assert join({**TORCHRUN, "WORLD_SIZE": "1"}) == (None, 1)
    assert join(POD) == (None, 1)  # no TPU here


def test_each_kind_of_job(join):
    assert join(OWN) == (("h:1", 2, 0), 2)
    assert join(TORCHRUN) == (("a:29500", 4, 3), 4)
    assert join(SLURM) == (AUTO, 2)
    assert join({"OMPI_COMM_WORLD_SIZE": "8"}) == (AUTO, 8)
    assert join({**OWN, **SLURM}) == (("h:1", 2, 0), 2)  # one's own words come first
    assert join({"JAXSR_CLUSTER": "auto"}) == (AUTO, 1)


def test_pod_slices(join):
    assert join(POD, tpu=True) == (AUTO, 1)
    assert join({"MEGASCALE_NUM_SLICES": "2", "TPU_WORKER_HOSTNAMES": "a"}, tpu=True)[0] == AUTO
    assert join({"TPU_WORKER_HOSTNAMES": "localhost"}, tpu=True) == (None, 1)
    assert join({}, tpu=True) == (AUTO, 1)  # a Cloud TPU VM: the metadata server knows
    assert join({}, tpu=True, platform="cpu") == (None, 1)
    assert join({"TPU_SKIP_MDS_QUERY": "1"}, tpu=True) == (None, 1)


def test_a_tpu_without_a_metadata_server_is_used_alone(join, caplog):
    assert join({}, tpu=True, fails=ConnectionError("no such server")) == (None, 1)
    assert "using this host alone" in caplog.text
    with pytest.raises(ConnectionError):  # a slice that is described must be joined
        join(POD, tpu=True, fails=ConnectionError("no such server"))


def test_none_turns_recognition_off(join):
    for environment in (SLURM, TORCHRUN, POD):
        assert join({**environment, "JAXSR_CLUSTER": "none"}, tpu=True) == (None, 1)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JAXSR_COORDINATOR": "h:1", "JAXSR_PROCESS": "0"}, "but not JAXSR_PROCESSES"),
        ({**OWN, "JAXSR_PROCESS": "two"}, "JAXSR_PROCESS must be a number, got 'two'"),
        ({**OWN, "JAXSR_PROCESS": "2"}, "process 2 of 2 does not exist"),
        ({**TORCHRUN, "RANK": "x"}, "RANK must be a number"),
        ({"JAXSR_CLUSTER": "slurm"}, "JAXSR_CLUSTER must be auto or none, got 'slurm'"),
    ],
)
def test_half_a_description_is_refused(join, environment, message):
    with pytest.raises(ValueError, match=message):
        join(environment)


def test_jax_understands_the_same_slurm_variables(monkeypatch):
    """JAX's own recogniser, which is private: a change there must show here."""
    from jax._src.clusters import SlurmCluster

    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert SlurmCluster.is_env_present()
    assert SlurmCluster.get_coordinator_address(60, None).startswith("node001:")
    assert (SlurmCluster.get_process_count(), SlurmCluster.get_process_id()) == (2, 1)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {**OWN, "JAXSR_COORDINATOR": "h"},
            "with a port from 1 to 65535, got 'h'",
        ),
        ({**OWN, "JAXSR_COORDINATOR": "h:0"}, "must be HOST:PORT"),
        ({**OWN, "JAXSR_COORDINATOR": ":1"}, "must be HOST:PORT"),
        ({**OWN, "JAXSR_COORDINATOR": "h:²"}, "must be HOST:PORT"),
        ({**OWN, "JAXSR_COORDINATOR": "no.such.invalid:1"}, "'no.such.invalid' is unknown"),
        ({**OWN, "JAXSR_PROCESSES": "²"}, "JAXSR_PROCESSES must be a number, got '²'"),
        ({**OWN, "JAXSR_PROCESSES": "9" * 30}, "JAXSR_PROCESSES must be a number"),
        ({**TORCHRUN, "MASTER_PORT": "abc"}, "must be HOST:PORT .* got 'a:abc'"),
    ],
)
def test_coordinators_that_cannot_be_are_refused_at_once(join, environment, message):
    with pytest.raises(ValueError, match=message):
        join(environment, hosts="invalid" not in environment.get("JAXSR_COORDINATOR", ""))


def test_a_coordinator_that_does_not_answer_is_said(monkeypatch):
    for name, value in OWN.items():
        monkeypatch.setenv(name, value)
    said, lines = threading.Event(), []

    def say(line):
        lines.append(line)
        said.set()

    monkeypatch.setattr(distributed.socket, "getaddrinfo", lambda *_: [])
    monkeypatch.setattr(distributed, "_SILENT_S", 0.01)
    monkeypatch.setattr(distributed.log, "warning", say)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_: said.wait(60))
    assert distributed.start_if_asked() == 2
    assert lines == ["waiting for h:1, the coordinator of a job of 2 processes"]


@pytest.mark.skipif(sys.platform != "linux", reason="names without files are Linux's")
def test_a_second_process_of_one_number_is_refused(tmp_path):
    job = tmp_path.name  # names are the machine's
    code = (
        "from jaxsr.interop import distributed\n"
        "import sys\n"
        "for _ in range(2): distributed._claim_number(sys.argv[2], int(sys.argv[1]))\n"
        "print('claimed', flush=True)\n"
        "sys.stdin.read()\n"
    )

    def start(number):
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        return subprocess.Popen([sys.executable, "-c", code, str(number), job], text=True, **pipes)

    first = start(0)
    assert first.stdout is not None and first.stdout.readline() == "claimed\n"
    second, other = start(0), start(1)
    assert f"is process 0 of the job at {job}; give every process" in second.communicate()[1]
    for process in (first, other):
        assert process.communicate()[1] == ""
    again = start(0)  # a number is free when its process has ended
    assert again.communicate()[0] == "claimed\n"
