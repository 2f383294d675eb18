"""Modules of the current folder, which may be a stranger's, run only if the command names one."""

import subprocess
import sys

import pytest

NETS = "import helper\nimport torch\n\n\nclass Net(torch.nn.Conv2d):\n    pass\n"


def run(words, folder):
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("form", [["-m", "jaxsr.train"], ["-mjaxsr.train"], ["-m", "jaxsr"]])
def test_libraries_are_not_taken_from_the_current_folder(tmp_path, form):
    for name in ("json", "logging", "tyro", "numpy", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    result = run([*form, "--help"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "train" in result.stdout


def test_code_that_the_command_names_is_found_and_its_neighbours(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "helper.py").write_text("import sys\nprint('helper runs', file=sys.stderr)\n")
    words = ["-m", "jaxsr.check", "--model", "nets:Net", "--model-options", "{}"]
    result = run(words, tmp_path)
    assert "helper runs" in result.stderr and "in_channels" in result.stderr


def test_another_programs_folder_stays(tmp_path):
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("import jaxsr")
    (package / "train.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("print('found')")
    assert run(["-m", "project.train"], tmp_path).stdout == "found\n"
