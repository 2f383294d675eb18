"""A command's help loads neither torch nor JAX: it is printed at once."""

import subprocess
import sys

import pytest

COMMANDS = ["check", "restore", "generate", "compare"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_no_framework(command):
    code = (
        f"import sys; from jaxsr import {command}; status = {command}.main(['--help']); "
        "loaded = {'torch', 'jax', 'transformers'} & set(sys.modules); "
        "assert not loaded, loaded; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--model" in done.stdout or command == "compare"
