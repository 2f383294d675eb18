"""Tables of the documentation are what the committed results give."""

from pathlib import Path

import pytest

from benchmarks import published_weights, sharding
from benchmarks._results import read_rows

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    ("benchmark", "page"),
    [(published_weights, "models.md"), (sharding, "scale.md")],
    ids=["published_weights", "sharding"],
)
def test_tables_are_rendered_from_the_results(benchmark, page):
    lines = benchmark.table(read_rows(benchmark.RECORD))
    assert len(lines) > 4
    assert "\n".join(lines) in (DOCS / page).read_text()
