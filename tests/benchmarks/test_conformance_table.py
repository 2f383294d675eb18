"""docs/conformance.md is what `python -m benchmarks.conformance` made of the suite as it stands."""

import pytest

from benchmarks.conformance.suite import RECORD, TABLE, render
from benchmarks.harness.report import read_rows
from tests.oracles.conformance.every import CASES
from tests.oracles.conformance.registry import TORCH


@pytest.mark.skipif(TORCH < (2, 13), reason="needs torch 2.13, whose functions the table has")
def test_the_committed_table_is_current():
    record = read_rows(RECORD)
    rows = {r["name"]: r["status"] for r in record}
    workaround = "run python -m benchmarks.conformance and commit both files"
    assert list(rows) == list(CASES), workaround
    for name, case in CASES.items():
        assert (rows[name] == "refused") == (case.refused is not None), (name, workaround)
    assert TABLE.read_text() == render(record), workaround
