"""Forked workers: torch alone works, JAX in them is refused in one line instead of hanging."""

import subprocess
import sys

import pytest

CODE = """
import torch, jax
from torch.utils.data import DataLoader, Dataset
from jaxsr.interop import to_jax

module = to_jax(torch.nn.Linear(3, 3))
KIND, HOW = {kind!r}, {context!r}

class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if KIND == "apply":
            module.apply(module.params, module.buffers, torch.ones(3).numpy())
        if KIND == "convert":
            to_jax(torch.nn.Linear(3, 3))
        return torch.ones(3) * index

if __name__ == "__main__":
    for batch in DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context=HOW):
        print(batch.shape)
"""


def run(tmp_path, kind, context="fork"):
    script = tmp_path / "script.py"
    script.write_text(CODE.format(kind=kind, context=context))
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )


def test_workers_of_torch_alone_work_and_the_fork_is_said(tmp_path):
    done = run(tmp_path, "torch")
    assert done.returncode == 0 and done.stdout.count("torch.Size([4, 3])") == 2, done.stderr
    assert done.stderr.count('multiprocessing_context="spawn"') == 1
    assert "os.fork() was called" not in done.stderr


@pytest.mark.parametrize("kind", ["apply", pytest.param("convert", marks=pytest.mark.slow)])
def test_jax_in_a_worker_is_refused(tmp_path, kind):
    done = run(tmp_path, kind)
    assert done.returncode == 1
    assert "this process was forked after JAX had started" in done.stderr


@pytest.mark.slow
def test_spawned_workers_may_use_jax(tmp_path):
    done = run(tmp_path, "apply", context="spawn")
    assert done.returncode == 0, done.stderr
    assert "fork" not in done.stderr


CALLS = """
import os, sys, numpy, torch, jaxsr

net, x = torch.nn.Conv2d(3, 3, 3, padding=1), torch.rand(1, 3, 8, 8)
call = {{
    "check": lambda: jaxsr.check(net, x, speed_s=0),
    "restore": lambda: jaxsr.restore(numpy.zeros((64, 64, 3), numpy.uint8), net),
}}[{name!r}]
call()
if os.fork() == 0:
    try:
        call()
    finally:
        print(sys.exception(), flush=True)
        os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("name", ["check", "restore"])
def test_a_call_that_begins_with_torch_is_refused(tmp_path, name):
    """torch's own threads are not in the child either: it waited for them without end."""
    script = tmp_path / "script.py"
    script.write_text(CALLS.format(name=name))
    words = [sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert "this process was forked after JAX had started" in done.stdout, done.stderr
