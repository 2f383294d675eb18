"""The pages show what the committed results of `benchmarks/aot.py` say."""

from pathlib import Path

import pytest

from benchmarks import aot

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize(("page", "table"), [("lane-folding", "folding"), ("tpu", "steps")])
def test_a_page_holds_the_table_as_printed(page, table):
    printed = "\n".join(aot.TABLES[table]())
    again = f"put the output of python -m benchmarks.aot --table {table} into docs/{page}.md"
    assert printed in (DOCS / f"{page}.md").read_text(), again


def test_every_program_has_its_row_and_every_row_its_program():
    assert set(aot.read()) == set(aot.programs())
