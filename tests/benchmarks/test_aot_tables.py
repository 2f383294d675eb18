"""The pages show what the committed results of `benchmarks.aot` say."""

from pathlib import Path

import pytest

from benchmarks.ahead import aot, lane_folding_table
from benchmarks.harness.report import read_rows
from jaxsr.interop.folding.table import FOLDS

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "table"), [("lane-folding", "folding"), ("tpu-programs", "steps")]
)
def test_a_page_holds_the_table_as_printed(page, table):
    printed = "\n".join(aot.TABLES[table]())
    again = f"put the output of python -m benchmarks.aot --table {table} into docs/{page}.md"
    assert printed in (DOCS / f"{page}.md").read_text(), again


def test_every_program_has_its_row_and_every_row_its_program():
    assert set(aot.read()) == set(aot.programs())


@pytest.mark.parametrize("chip", FOLDS)
def test_the_table_is_what_the_search_found(chip):
    rows = read_rows(lane_folding_table.RECORD)
    assert FOLDS[chip] == lane_folding_table.best_folds(rows, chip)
    for channels in lane_folding_table.CHANNELS:
        assert sum((row["chip"], row["channels"]) == (chip, channels) for row in rows) > 2
