"""`import jaxsr.ops` needs jax and NumPy alone, and little of the time that jax takes."""

import os
import subprocess
import sys
import textwrap

BLOCKED = {"torch", "torchax", "cv2", "scipy", "PIL", "skimage", "jaxtyping", "flax", "optax"}
PROGRAM = textwrap.dedent("""
    import sys, time
    start = time.process_time()
    import jax.numpy, numpy as np
    of_jax = time.process_time() - start
    before = set(sys.modules)
    for name in sys.argv[1].split(","):
        assert name not in sys.modules, name
        sys.modules[name] = None
    start = time.process_time()
    import jaxsr.ops
    print((time.process_time() - start) / of_jax)
    roots = {name.split(".")[0] for name in set(sys.modules) - before}
    print(*sorted(roots - set(sys.stdlib_module_names) - {"jax", "jaxlib", "numpy", "jaxsr"}))
    assert jaxsr.ops.resize(np.ones((4, 4, 3), np.uint8), 2, convention="opencv").shape == (2, 2, 3)
""")


def test_import():
    # With bytecode, as an installed package has it: compiling the sources takes as long again.
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", PROGRAM, ",".join(BLOCKED)]
    for _ in range(2):  # the first one writes it
        output = subprocess.check_output(command, env=environment, text=True)
    share, packages = output.splitlines()
    assert float(share) < 0.4
    assert set(packages.split()) <= BLOCKED


def test_the_package_loads_its_parts_when_they_are_used():
    names = ("check", "interop", "ops", "restore", "train", "to_jax", "Task", "TaskConfig")
    code = f"""
import sys, jaxsr
assert not {{"torch", "jax"}} & set(sys.modules)
assert set({names!r}) <= set(dir(jaxsr))
for name in {names!r}:
    assert getattr(jaxsr, name).__doc__, name
assert jaxsr.ops.resize and jaxsr.to_jax is jaxsr.interop.to_jax
assert callable(jaxsr.check) and callable(jaxsr.restore)
assert not hasattr(jaxsr, "no_such_name")
"""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
