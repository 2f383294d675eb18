"""Docstrings begin with the thing or a verb."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("jaxsr", "interop", "ops", "tests", "benchmarks", "examples", "docs")


def statements(path: Path) -> Iterator[tuple[int, str]]:
    """Strings that stand alone, below a definition or a field, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


@pytest.mark.parametrize("folder", FOLDERS)
def test_none_begins_with_of_or_what(folder):
    """Fragments such as "Of the samples" lack their noun or verb."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    docstrings = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in paths
        for line, text in statements(path)
        if text.startswith(("Of ", "What "))
    ]
    assert not docstrings, "\n".join(docstrings)
