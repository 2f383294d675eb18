"""Tables of the documentation are what the committed results give."""

from pathlib import Path

import pytest

from benchmarks.ahead import sharding
from benchmarks.harness.report import read_rows
from benchmarks.ops import ops_functions
from benchmarks.restoration import published_weights

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("benchmark", "table", "page"),
    [
        (published_weights, published_weights.table, "models.md"),
        (published_weights, published_weights.small_table, "models.md"),
        (sharding, sharding.table, "scale.md"),
        (ops_functions, ops_functions.committed_table, "ops.md"),
    ],
    ids=["published_weights", "small", "sharding", "ops"],
)
def test_tables_are_rendered_from_the_results(benchmark, table, page):
    lines = table(read_rows(benchmark.RECORD))
    assert len(lines) > 4
    assert "\n".join(lines) in (DOCS / page).read_text()
