"""Imports go one way, function-level imports included; ARCHITECTURE's picture is this table.

xla_calls ← ops ← interop ← errors ← models, data, metrics ← runtime ← tasks ← commands
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOMES = {"jaxsr.ops": ROOT / "ops", "jaxsr.interop": ROOT / "interop", "jaxsr": ROOT / "jaxsr"}

LAYERS = (
    ("xla_calls",),
    ("ops",),
    ("interop",),
    ("errors", "field_values", "folders"),
    ("models", "data", "metrics", "weights"),
    ("runtime",),
    ("training", "restoration", "detection", "generation", "comparison", "doctor"),
)
"""Packages of jaxsr, lowest first; commands, the modules of jaxsr itself, stand above all."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
COMMAND = len(LAYERS)

FRAMEWORKS = {
    "xla_calls": ("torch", "torchax"),
    "ops": ("torch", "torchax"),
    "models": ("jax", "jaxlib", "flax", "torchax"),
    "data": ("torch", "torchax"),
}
"""Imports that a package must not have."""

INTEROP_OF_MODELS = {
    "jaxsr.interop.annotations",
    "jaxsr.interop.atomic_write",
    "jaxsr.interop.bounded_read",
    "jaxsr.interop.errors",
    "jaxsr.interop.fields",
    "jaxsr.interop.host_arrays",
    "jaxsr.interop.install",
    "jaxsr.interop.isolated",
    "jaxsr.interop.module_copy",
    "jaxsr.interop.out_of_memory",
    "jaxsr.interop.python_code",
    "jaxsr.interop.python_state",
    "jaxsr.interop.python_values",
    "jaxsr.interop.train.objective",
    "jaxsr.interop.sealed_json",
    "jaxsr.interop.sharding_rules",
    "jaxsr.interop.torch_evaluation",
    "jaxsr.interop.weights",
}
"""Modules of interop that `models` may import, because they import no JAX."""


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of the distribution, with its file."""
    for package, home in HOMES.items():
        for path in sorted(home.rglob("*.py")):
            parts = path.relative_to(home).with_suffix("").parts
            if package == "jaxsr" and parts[0] in ("ops", "interop"):
                continue  # links to the folders above
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


def imports(path: Path) -> set[str]:
    """Names of the modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path} imports relatively"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def package_of(module: str) -> str | None:
    """The package below jaxsr that a module belongs to; None for jaxsr itself and commands."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK else None


def rank_of(module: str) -> int:
    package = package_of(module)
    return COMMAND if package is None else RANK[package]


MODULES = dict(sources())


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    for name in imports(MODULES[module]):
        if name == "jaxsr" or name.split(".")[0] != "jaxsr":
            continue
        same = package_of(name) == package_of(module)
        assert same or rank_of(name) <= rank_of(module), f"{module} imports {name}"


def test_packages_have_no_cycle():
    graph: dict[str, set[str]] = {name: set() for name in RANK}
    for module, path in MODULES.items():
        package = package_of(module)
        if package is not None:
            used = {package_of(name) for name in imports(path) if name.startswith("jaxsr.")}
            graph[package] |= {name for name in used if name} - {package}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_files_import_each_other():
    graph = dict[str, set[str]]()
    for module, path in MODULES.items():
        if path.name != "__init__.py":
            used = {name for name in imports(path) if name in MODULES and name != module}
            graph[module] = {name for name in used if MODULES[name].name != "__init__.py"}
    TopologicalSorter(graph).prepare()  # raises CycleError, with the files of the circle


@pytest.mark.parametrize("package", FRAMEWORKS)
def test_packages_keep_to_their_framework(package):
    for module, path in MODULES.items():
        if package_of(module) == package:
            foreign = {name.split(".")[0] for name in imports(path)} & {*FRAMEWORKS[package]}
            assert not foreign, f"{module} imports {foreign}"


def test_models_need_no_jax():
    for module, path in MODULES.items():
        if package_of(module) == "models":
            used = {
                name for name in imports(path) & MODULES.keys() if name.startswith("jaxsr.interop")
            }
            assert used <= INTEROP_OF_MODELS, f"{module} imports {used - INTEROP_OF_MODELS}"


def test_commands_parse_and_call():
    for path in sorted((ROOT / "jaxsr").glob("*.py")):
        if path.stem not in ("__init__", *RANK):
            assert len(path.read_text().splitlines()) < 60, path.name


def test_tests_and_benchmarks_share_oracles_alone():
    """Only the tests of the benchmarks import them, and benchmarks import no test."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.parent != ROOT / "tests" / "benchmarks":
            used = {name for name in imports(path) if name.split(".")[0] == "benchmarks"}
            assert not used, f"{path} imports {used}"
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        used = {name for name in imports(path) if name.split(".")[0] == "tests"}
        used = {name for name in used if not name.startswith("tests.oracles.")}
        assert not used, f"{path} imports {used}"
    for path in sorted((ROOT / "tests" / "oracles").rglob("*.py")):
        used = {name for name in imports(path) if name.split(".")[0] == "tests"}
        used = {name for name in used if not name.startswith("tests.oracles.")}
        assert not used, f"{path} imports {used}"
