"""The core knows nothing of lane folding but the protocols in `_core/deferred.py`."""

import ast
from pathlib import Path

INTEROP = Path(__file__).resolve().parents[3] / "interop"
BUILDERS = {"module.py", "explanation.py"}
"""They hand a `LaneFolding` to a trace, and explain its rules."""


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_lane_folding_is_imported_by_its_builders_alone():
    rooms = [*INTEROP.glob("*.py"), *INTEROP.glob("_core/*.py"), *INTEROP.glob("lowerings/*.py")]
    importers = {
        path.name for path in rooms if any("jaxsr.interop.folding" in n for n in imported(path))
    }
    assert importers == BUILDERS
