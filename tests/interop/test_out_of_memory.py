"""XLA's and torch's out-of-memory errors, by the texts that their sources have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxsr.interop import out_of_memory
from jaxsr.interop.out_of_memory import (
    OutOfMemoryError,
    Shortage,
    check_fits,
    check_program_fits,
    free_memory_bytes,
    naming_out_of_memory,
    out_of_memory_error,
    read_shortage,
)

GIB = 2**30
CPU = "RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes."
GPU = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16.00GiB."
OLDER_GPU = (
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.\n"
    "BufferAssignment OOM Debugging.\n"
)
TPU = (
    "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 16.00G. That was "
    "not possible. There are 4.00G free.; (0x0x0_HBM0)"
)
TPU_PROGRAM = (
    "RESOURCE_EXHAUSTED: Error loading program: Attempting to reserve 16.00G at the bottom of "
    "memory. That was not possible. There are 4.00G free, 0B reserved, and 4.00G reservable."
)
TPU_COMPILER = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 20.51G of 15.48G hbm. Exceeds hbm capacity by 5.03G."
)
TORCH = (
    "CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 4.00 GiB is free. Process 1 has 75.09 GiB memory in use."
)


@pytest.mark.parametrize(
    ("text", "free"),
    [(CPU, None), (GPU, None), (OLDER_GPU, None), (TPU, 4), (TPU_PROGRAM, 4), (TORCH, 4)],
)
def test_sizes_are_read(text, free):
    assert read_shortage(text) == Shortage(16 * GIB, free and free * GIB)


def test_the_tpu_compiler_names_the_whole_program():
    shortage = read_shortage(TPU_COMPILER)
    assert shortage == Shortage(int(20.51 * GIB), int(15.48 * GIB), "hbm")
    error = jax.errors.JaxRuntimeError(TPU_COMPILER)
    named = out_of_memory_error(error, rows=64, multiple=8)
    assert str(named).startswith(
        "out of memory: the program needs 20.51 GiB of 15.48 GiB of hbm; --batch 48 instead of 64 "
        "may fit; use a smaller batch"
    )


def test_what_is_free_comes_from_the_text_or_the_device(monkeypatch):
    torch_error = torch.OutOfMemoryError(TORCH)
    assert (
        "16.00 GiB are asked for at once, 4.00 GiB are free; --batch-size 4 instead of 16"
        in str(out_of_memory_error(torch_error, rows=16, option="--batch-size"))
    )
    monkeypatch.setattr(out_of_memory, "_free_memory", lambda: 2 * GIB)
    error = jax.errors.JaxRuntimeError(GPU)
    assert "2.00 GiB are free; --batch 2 instead of 16 may fit" in str(
        out_of_memory_error(error, rows=16)
    )
    # Two rows on each of four devices cannot become a quarter.
    assert "may fit" not in str(out_of_memory_error(error, rows=8, multiple=4))
    monkeypatch.setattr(out_of_memory, "_free_memory", lambda: None)
    assert str(out_of_memory_error(error, rows=16, advice="buy more")) == (
        "out of memory: 16.00 GiB are asked for at once; buy more"
    )
    text = "RESOURCE_EXHAUSTED: the allocator is\ntired"
    named = out_of_memory_error(jax.errors.JaxRuntimeError(text))
    assert str(named).startswith("out of memory (RESOURCE_EXHAUSTED: the allocator is tired); use")


def test_a_real_shortage_is_named():
    """More than any machine has, so that nothing is touched."""
    with (
        pytest.raises(OutOfMemoryError, match=r"8388608.00 GiB are asked for at once, .* free"),
        naming_out_of_memory(rows=1),
    ):
        jnp.zeros((1 << 51,), jnp.float32).block_until_ready()


def test_numpys_shortage_is_named():
    with (
        pytest.raises(OutOfMemoryError, match=r"16777216.00 GiB are asked for at once, .* free"),
        naming_out_of_memory(rows=1),
    ):
        np.zeros(1 << 54, np.uint8)


def test_other_errors_pass():
    for error in (
        jax.errors.JaxRuntimeError("INTERNAL: something"),
        ValueError("RESOURCE_EXHAUSTED"),
        OutOfMemoryError("named already"),
    ):
        with pytest.raises(type(error)) as raised, naming_out_of_memory():
            raise error
        assert raised.value is error


def test_what_cannot_fit_is_refused_before_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(out_of_memory, "free_memory_bytes", lambda: 2 * GIB)
    check_fits(2 * GIB, "two crops")
    with pytest.raises(OutOfMemoryError) as raised:
        check_fits(3 * GIB, "three crops", advice="take two")
    assert str(raised.value) == (
        "three crops need at least 3.00 GiB of memory, and 2.00 GiB are free; take two"
    )


def test_a_program_that_cannot_fit_is_refused_before_it_runs(monkeypatch):
    step = jax.jit(lambda x: jnp.sort(x[:, None] * x).sum())
    program, cpu = (
        step.lower(jnp.ones(4096)).compile(),
        jax.devices("cpu")[0],
    )  # an intermediate value of 64 MiB
    check_program_fits(program, [cpu], "values")
    monkeypatch.setattr(out_of_memory, "free_memory_bytes", lambda: 200 * 2**20)
    check_program_fits(program, [cpu], "values")
    with pytest.raises(OutOfMemoryError, match=r"the values of a step need at least .* GiB of"):
        check_program_fits(program, [cpu] * 8, "the values of a step")


@pytest.mark.parametrize(
    ("prefix", "limit", "used", "total"),
    [
        ("memory.", "max", "current", ""),
        ("memory/memory.", "limit_in_bytes", "usage_in_bytes", "total_"),
    ],
)
def test_cached_files_of_a_container_are_free(tmp_path, monkeypatch, prefix, limit, used, total):
    """Linux documents the files; once a data set was read, usage stays at the limit."""
    monkeypatch.setattr(out_of_memory, "_CGROUP", tmp_path)
    (tmp_path / "memory").mkdir()
    files = {limit: "67108864", used: "66060288"}  # 64 and 63 MiB
    lines = ["anon 34603008", f"{total}inactive_file 20971520", f"{total}active_file 10485760"]
    for name, text in (files | {"stat": "\n".join(lines)}).items():
        (tmp_path / f"{prefix}{name}").write_text(f"{text}\n")
    assert free_memory_bytes() == 31 * 2**20
    (tmp_path / f"{prefix}stat").unlink()
    assert free_memory_bytes() == 2**20
    (tmp_path / f"{prefix}{limit}").write_text("max\n" if not total else f"{2**63 - 4096}\n")
    assert free_memory_bytes() > 2**30
