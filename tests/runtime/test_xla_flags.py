"""No program that is compiled after `import jaxsr` is exposed to XLA's YNN fusion.

Each case runs in a process of its own: XLA reads its flags once.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from jaxsr.runtime import xla_flags

OFF = f"--{xla_flags.YNN_FUSION}="

pytestmark = pytest.mark.skipif(
    not xla_flags._jaxlib_knows(xla_flags.YNN_FUSION), reason="this jaxlib has no YNN fusion"
)

FUSED = """
def fused(size):
    import jax
    program = jax.jit(lambda x: (x * x).sum(1)).lower(jax.ShapeDtypeStruct((size, 128), "float32"))
    return '"__ynn_fusion"' in program.compile().as_text()
"""


def run(code: str, *, flags: str | None = None, **variables: str) -> subprocess.CompletedProcess:
    """A script in a process whose environment has not been touched by jaxsr."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | variables
    environment |= {"JAX_PLATFORMS": "cpu"} | ({} if flags is None else {"XLA_FLAGS": flags})
    return subprocess.run(
        [sys.executable, "-c", FUSED + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def test_the_fusion_is_on_without_jaxsr():
    assert run("print(fused(64))").stdout == "True\n"


@pytest.mark.sample(1)
@pytest.mark.parametrize("module", ["jaxsr", "jaxsr.ops", "jaxsr.interop", "jaxsr.models.registry"])
def test_any_part_of_jaxsr_turns_it_off(module):
    done = run(f"import {module}; print(fused(64))")
    assert done.stdout == "False\n" and "YNN" not in done.stderr


def test_jax_may_be_imported_first():
    done = run("import jax, jax.numpy\nimport jaxsr\nprint(fused(64))")
    assert done.stdout == "False\n" and "YNN" not in done.stderr


def test_a_running_backend_is_warned_about_once_and_later_programs_are_safe():
    code = """
import jax
print(fused(64), float(jax.numpy.ones(3).sum()))
import jaxsr, jaxsr.ops
print(fused(67), jax.jit(lambda x: x.sum())(jax.numpy.ones((64, 128))))
print(fused(64) if jax.clear_caches() is None else None)
"""
    done = run(code)
    assert done.stdout.split("\n")[:3] == ["True 3.0", "False 8192.0", "False"]
    assert done.stderr.count("RuntimeWarning") == 1
    for part in ("wrong values", "later ones are safe", "put `import jaxsr` before"):
        assert part in done.stderr


@pytest.mark.slow
def test_a_flag_that_is_set_after_the_backend_has_started_is_not_believed():
    code = f"""
import os
import jax
jax.devices()
os.environ["XLA_FLAGS"] = {OFF!r}
import jaxsr
print(fused(64))
"""
    done = run(code)
    assert done.stdout == "False\n" and done.stderr.count("RuntimeWarning") == 1


@pytest.mark.slow
def test_a_running_backend_with_the_fusion_off_is_not_warned_about():
    done = run("import jax; jax.devices()\nimport jaxsr\nprint(fused(64))", flags=OFF)
    assert done.stdout == "False\n" and "RuntimeWarning" not in done.stderr


def test_what_the_user_turned_on_stands_and_is_warned_about():
    flags = f"{OFF}reduce --xla_cpu_multi_thread_eigen=true"
    done = run("import os, jaxsr; print(os.environ['XLA_FLAGS']); print(fused(64))", flags=flags)
    assert done.stdout == f"{flags}\nTrue\n"
    assert done.stderr.count("RuntimeWarning") == 1 and "leave its value empty" in done.stderr


DEVICES = """
import jaxsr, jax
print(len(jax.devices()), fused(64))
"""


def test_other_flags_are_kept(tmp_path):
    # XLA reads flags from a file, too.
    flags = "--xla_force_host_platform_device_count=3\n--xla_cpu_multi_thread_eigen=true\n"
    (tmp_path / "flags").write_text(flags)
    assert run(DEVICES, flags=str(tmp_path / "flags")).stdout == "3 False\n"


@pytest.mark.slow
def test_other_flags_are_kept_wherever_they_are(tmp_path):
    flags = "--xla_force_host_platform_device_count=3"
    assert run(DEVICES, flags=flags).stdout == "3 False\n"
    assert run(DEVICES, flags=str(tmp_path / "none")).stdout == "1 False\n"
    (tmp_path / "on").write_text(f"{OFF}reduce")
    assert "RuntimeWarning" in run("import jaxsr", flags=str(tmp_path / "on")).stderr


@pytest.mark.slow
def test_an_option_of_one_program_stands_in_a_running_backend():
    code = f"""
import jax
jax.devices()
import jaxsr
options = {{"{xla_flags.YNN_FUSION}": "LIBRARY_FUSION_TYPE_REDUCE"}}
f = jax.jit(lambda x: (x * x).sum(1), compiler_options=options)
print('"__ynn_fusion"' in f.lower(jax.ShapeDtypeStruct((64, 128), "float32")).compile().as_text())
"""
    assert run(code).stdout == "True\n"


CHILDREN = """
import multiprocessing, subprocess, sys
import jaxsr
import child

if __name__ == "__main__":
    for method in sys.argv[1:]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.apply(child.fused, (64,)))
    code = "import child; print('subprocess', child.fused(64))"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_child_processes_are_safe_even_without_jaxsr(tmp_path, method):
    (tmp_path / "child.py").write_text(FUSED)
    (tmp_path / "parent.py").write_text(CHILDREN)
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "parent.py", method],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == [method, "False", "subprocess", "False"]


def test_this_suite_is_safe():
    import jax

    program = jax.jit(lambda x: (x * x).sum(1)).lower(jax.ShapeDtypeStruct((64, 128), "float32"))
    assert '"__ynn_fusion"' not in (program.compile().as_text() or "")


@pytest.mark.parametrize("command", ["train", pytest.param("doctor", marks=pytest.mark.slow)])
def test_commands_are_safe(command):
    code = "import sys, runpy; sys.argv[1:] = ['--help']; "
    code += f"runpy.run_module('jaxsr.{command}', run_name='x', alter_sys=True); print(fused(64))"
    assert run(code).stdout.splitlines()[-1] == "False"


def test_a_flag_that_this_jaxlib_does_not_know_is_not_set():
    code = """
import os
from jaxsr.runtime import xla_flags
del os.environ["XLA_FLAGS"]
xla_flags._jaxlib_knows = lambda flag: False
xla_flags.disable_ynn_fusion()
print(os.environ.get("XLA_FLAGS"))
"""
    assert run(code).stdout == "None\n"
    assert not xla_flags._jaxlib_knows("xla_cpu_no_such_flag")


def test_the_import_needs_no_jax_and_ops_no_torch():
    code = "import sys, jaxsr; print({'jax', 'jaxlib', 'torch'} & {*sys.modules})"
    assert run(code).stdout == "set()\n"
    assert run("import sys, jaxsr.ops; print('torch' in sys.modules)").stdout == "False\n"


def test_settings_are_read_as_xla_reads_them():
    assert xla_flags.ynn_setting("") is None
    assert xla_flags.ynn_setting("--xla_cpu_multi_thread_eigen=true") is None
    assert xla_flags.ynn_setting(OFF) == ""
    assert xla_flags.ynn_setting(f"{OFF}'' --a=b") == ""
    assert xla_flags.ynn_setting(f"{OFF} {OFF}dot,reduce") == "dot,reduce"
    assert xla_flags.without_ynn_flag(f"--a=b {OFF} --c") == "--a=b --c"
    assert xla_flags.without_ynn_flag(f"{OFF}dot") == f"{OFF}dot"


STORED = """
import jax
from jax._src import monitoring
hits = []
monitoring.register_event_listener(lambda name, **_: hits.append(name))
jax.config.update("jax_compilation_cache_dir", {folder!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
import numpy as np
x = np.zeros((32769, 3), "float32")
x[:, 0] = np.arange(len(x))
args = (x, np.eye(3, dtype="float32"))

def f(x, matrix):
    return jax.vmap(lambda row: jax.numpy.sum((matrix @ row) ** 2))(x)
"""
COUNT = """
program = jax.jit(f).lower(*args).compile()
print('"__ynn_fusion"' in program.as_text(), sum("cache_hits" in h for h in hits), end=" ")
print(float(program(*args)[-1]) == 2.0**30)
"""


def test_programs_that_were_compiled_with_the_fusion_are_not_read_from_the_cache(tmp_path):
    start = STORED.format(folder=str(tmp_path))
    # The fault itself, in jaxlib 0.10.2, and the cache.
    right = str(version("jaxlib") != "0.10.2")
    assert run(start + COUNT).stdout == f"True 0 {right}\n"
    assert run("import jaxsr" + start + COUNT).stdout == "False 0 True\n"


@pytest.mark.slow
def test_programs_without_the_fusion_are_read_from_the_cache(tmp_path):
    start = STORED.format(folder=str(tmp_path))
    right = str(version("jaxlib") != "0.10.2")
    assert run(start + COUNT).stdout == f"True 0 {right}\n"
    assert run(start + COUNT).stdout == f"True 1 {right}\n"
    assert run("import jaxsr" + start + COUNT).stdout == "False 0 True\n"
    assert run("import jaxsr" + start + COUNT).stdout == "False 1 True\n"
    # Imported late: this process reads and writes entries of its own.
    late = "import jax; jax.devices()\nimport jaxsr" + start + COUNT
    assert run(late).stdout == "False 0 True\n"
    assert run(late).stdout == "False 1 True\n"
    assert run("import jaxsr" + start + COUNT).stdout == "False 1 True\n"


@pytest.mark.slow
def test_stored_traces_hold_no_fusion(tmp_path):
    start = (
        STORED.format(folder=str(tmp_path / "compiled"))
        + f"""
from pathlib import Path
from jaxsr.generation.stored_programs import stored
mesh = jax.make_mesh((1,), ("data",))
spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
args = tuple(jax.device_put(a, spec) for a in args)
f = stored(Path({str(tmp_path)!r}), "key", f, args, name="f")
"""
    )
    # The fusion on in a process that has jaxsr: the user's own flag.
    assert run(start + COUNT, flags=f"{OFF}dot,reduce").stdout.split()[0] == "True"
    assert len(list(tmp_path.glob("*.jaxexport"))) == 1
    assert run("import jaxsr" + start + COUNT).stdout == "False 0 True\n"
    assert len(list(tmp_path.glob("*.jaxexport"))) == 1
