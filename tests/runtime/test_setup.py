"""Settings that commands change in JAX, each in a process of its own."""

import importlib.util
import os
import subprocess
import sys

import pytest

from jaxsr.errors import DeviceError, InputError
from jaxsr.runtime import setup
from jaxsr.runtime.options import ComputeOptions

SHOW = """
import jax, logging
from jaxsr.runtime.options import ComputeOptions
from jaxsr.runtime.setup import setup_compute
backend = setup_compute(ComputeOptions({options}), {more})
print(backend, len(jax.devices()), jax.config.jax_persistent_cache_min_compile_time_secs,
      jax.config.jax_compilation_cache_dir, jax.config.jax_default_matmul_precision,
      logging.getLogger("jax._src.xla_bridge").level)
"""


def show(options: str, more: str = "") -> tuple[list[str], str]:
    code = SHOW.format(options=options, more=more)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_everything_is_set_in_one_place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    values, _ = show("platform='cpu', mesh='3', matmul_precision='highest'")
    assert values == ["cpu", "3", "0.2", str(tmp_path / "jaxsr" / "compiled"), "highest", "40"]


@pytest.mark.slow
def test_the_cache_is_where_the_user_wants_it(tmp_path):
    values, _ = show(f"platform='cpu', compile_cache=__import__('pathlib').Path({str(tmp_path)!r})")
    assert values == ["cpu", "1", "0.2", str(tmp_path), "None", "40"]


def test_jax_stays_on_the_cpu_beside_torch():
    values, _ = show("engine='torch', platform='cpu'", "jax_on_host=True")
    assert values[:2] == ["cpu", "1"]


def test_torch_alone_does_not_import_jax():
    code = (
        "import sys\n"
        "from jaxsr.runtime.options import ComputeOptions\n"
        "from jaxsr.runtime.setup import setup_compute\n"
        "assert setup_compute(ComputeOptions(engine='torch', platform='cpu')) == 'cpu'\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_libtpu_is_silent_where_there_is_no_tpu():
    from jaxsr.interop.plugin_start import has_tpu

    if has_tpu():
        pytest.skip("this machine has a TPU")
    _, error = show("")
    assert error == ""


def test_cuda_for_torch_that_is_not_there(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="torch finds no CUDA device; use --platform cpu"):
        setup.torch_device("cuda")
    assert setup.torch_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [setup.torch_device(p) for p in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]


def test_a_switch_of_the_kernels_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "both")
    with pytest.raises(InputError, match="JAXSR_CPU_KERNELS='both': must be 'native'"):
        setup.configure_jax(None)


def test_too_few_devices_are_reported_at_once():
    with pytest.raises(DeviceError, match="mesh of 99 devices asked for"):
        setup.setup_compute(ComputeOptions(platform="cpu", mesh="99"))


def test_torch_is_left_a_part_of_the_gpu_unless_the_user_says_otherwise(monkeypatch):
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.setenv(name, "true")
    setup.share_gpu_memory()
    assert os.environ[name] == "true"
    monkeypatch.delenv(name)
    setup.share_gpu_memory()
    assert os.environ[name] == "false"


def test_deterministic_kernels_are_asked_for_on_gpus_alone():
    code = (
        "import os; os.environ.pop('XLA_FLAGS', None)\n"
        "from jaxsr.runtime.options import ComputeOptions\n"
        "from jaxsr.runtime.setup import setup_compute\n"
        "setup_compute(ComputeOptions(platform='cpu'), deterministic=True)\n"
        "assert 'deterministic' not in os.environ.get('XLA_FLAGS', '')\n"
        "setup_compute(ComputeOptions(platform='auto'), deterministic=True)\n"
        "assert '--xla_gpu_deterministic_ops=true' in os.environ['XLA_FLAGS']"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_failed_save_of_orbax_prints_no_traceback(tmp_path):
    code = """
from jaxsr.runtime.setup import configure_jax
configure_jax(None)
from orbax.checkpoint._src.metadata import checkpoint as metadata
store = metadata.metadata_store(enable_write=True, blocking_write=True)
try:
    store.write(metadata.step_metadata_file_path("{}"), {{}})
except OSError as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code.format(tmp_path / "absent")], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.stdout.split()[-1:], done.stderr) == (["FileNotFoundError"], "")
