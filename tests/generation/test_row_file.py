"""Rows that are written while a run goes on, and the runs that may go on with them."""

import json
import os

import pytest

from jaxsr.errors import InputError
from jaxsr.generation.row_file import NewFile, RowFile
from jaxsr.interop.sealed_json import seal, unseal

SETTINGS = {"temperature": 0.5, "run": "abc"}
ORDER = [{"index": 0, "prompt": "a"}, {"index": 1, "prompt": "b"}]


def row(index, **others):
    return {**SETTINGS, "index": index, "prompt": "ab"[index]} | others


def test_rows_are_there_as_soon_as_they_are_written(tmp_path):
    path = tmp_path / "rows.jsonl"
    file = RowFile(path, SETTINGS)
    assert file.rows == []
    file.append(row(0, output="é 東"))
    assert unseal(path.read_bytes(), source=path) == row(0, output="é 東")
    assert '"output": "é 東"' in path.read_text(encoding="utf-8")
    file.append(row(1))
    file.complete()
    file.close()
    again = RowFile(path, SETTINGS)
    again.check(ORDER)
    assert [r["index"] for r in again.rows] == [0, 1]


def test_a_snapshot_of_hard_links_stays_as_it_is(tmp_path):
    path, early, copy = (tmp_path / n for n in ("rows.jsonl", "rows.jsonl.early", "snapshot"))
    for number in range(2):
        file = RowFile(path, SETTINGS)
        file.append(row(number)) if number else file.keep(row(1))
        with pytest.raises(InputError, match="is being written by another run"):
            RowFile(path, SETTINGS)
        file.close()
        names = [name for name in (path, early) if name.is_file()]
        copies = [copy.with_suffix(f".{name.name}.{number}") for name in names]
        for name, link in zip(names, copies, strict=True):
            os.link(name, link)
        before = [link.read_bytes() for link in copies]
        file = RowFile(path, SETTINGS)
        file.keep(row(1))
        file.append(row(0, output="more"))
        file.close()
        assert [link.read_bytes() for link in copies] == before


def test_rows_before_their_turn_count_after_a_kill(tmp_path):
    path, early = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.early"
    file = RowFile(path, SETTINGS)
    file.keep(row(1))
    assert path.read_bytes() == b""
    del file  # the run is killed: its lock is free
    with early.open("ab") as broken:
        broken.write(b'{"digest": "12')
    with pytest.raises(InputError, match=r"early line 1 was made with temperature=0\.5"):
        RowFile(path, SETTINGS | {"temperature": 0.6})
    again = RowFile(path, SETTINGS)
    assert (again.rows, again.early) == ([], [row(1)])
    assert early.read_bytes().count(b"\n") == 1
    again.append(row(0))
    again.append(row(1))
    again.complete()
    again.close()
    assert not early.exists()
    again.keep(row(1))
    path.unlink()
    assert RowFile(path, SETTINGS).early == []
    path.unlink()
    early.write_text("mine\n")
    with pytest.raises(InputError, match=r"jsonl.early has no rows of this command"):
        RowFile(path, SETTINGS)
    assert early.read_text() == "mine\n"


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_the_beginning_of_a_line_is_dropped(cut, tmp_path):
    path = tmp_path / "rows.jsonl"
    first, second = (seal(row(i), ensure_ascii=False).encode() + b"\n" for i in (0, 1))
    path.write_bytes(first + second[:-cut])
    file = RowFile(path, SETTINGS)
    assert file.rows == [row(0)]
    file.append(row(1))
    file.complete()
    file.close()
    assert path.read_bytes() == first + second


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json\n", "line 1 is not a row of this command; give another --out"),
        ("[1]\n", "line 1 is not a row"),
        ("my notes, without an end of line", "line 1 is not a row"),
        ('{"my": "notes"}', "line 1 is not a row"),
        (json.dumps(row(0)) + "\n", "line 1 is not a row"),
        (seal(row(0, output="a")).replace('"a"', '"b"') + "\n", "line 1 was changed"),
        (seal(row(0)) + "\nmy notes", "line 2 is not a row"),
        (seal(row(0, temperature=0.7)) + "\n", "temperature=0.7, this run has 0.5"),
        (seal(row(0, run="x" * 90)) + "\n", r"run='x+\.\.\., this run has 'abc'"),
        (seal({"a": 1}) + "\n", "temperature=None, this run has 0.5"),
    ],
)
def test_rows_of_another_run_are_refused(content, message, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        RowFile(path, SETTINGS)
    assert path.read_text() == content


def test_rows_of_other_prompts_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(seal(row(i)) + "\n" for i in (0, 1)))
    with pytest.raises(InputError, match="line 2 has prompt='b', this run has 'c' there"):
        RowFile(path, SETTINGS).check([ORDER[0], {"index": 1, "prompt": "c"}])
    with pytest.raises(InputError, match="holds 2 rows, this run makes 1"):
        RowFile(path, SETTINGS).check(ORDER[:1])


def test_two_runs_never_write_one_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    first = RowFile(path, SETTINGS)
    with pytest.raises(InputError, match="is being written by another run"):
        RowFile(path, SETTINGS)
    first.append(row(0))
    first.close()
    assert len(RowFile(path, SETTINGS).rows) == 1


def test_a_fifo_in_the_place_of_early_rows_stays(tmp_path):
    early = tmp_path / "rows.jsonl.early"
    os.mkfifo(early)
    with pytest.raises(InputError, match=r"rows\.jsonl\.early is not a regular file"):
        RowFile(tmp_path / "rows.jsonl", SETTINGS)
    assert early.is_fifo()


def test_a_new_file_belongs_to_one_run(tmp_path, caplog):
    path = tmp_path / "rows.csv"
    first = NewFile(path)
    with pytest.raises(InputError, match="is being written by another run"):
        NewFile(path)
    path.write_text("mine")
    first.complete([{"a": 1}])
    first.close()
    assert path.read_text() == "mine" and "the rows are in" in caplog.text
    assert (tmp_path / "rows-2.csv").read_text().split() == ["a", "1"]
    with pytest.raises(InputError, match="which has content"):
        NewFile(path)
    path.unlink()
    NewFile(path).close()  # failed: nothing is left, and another run may begin
    assert not path.exists()
    second = NewFile(path)
    second.complete([{"a": 2}])
    second.close()
    assert path.read_text().split() == ["a", "2"]


def test_early_rows_are_not_written_through_a_link(tmp_path):
    other = tmp_path / "other"
    (tmp_path / "rows.jsonl.early").symlink_to(other)
    with pytest.raises(InputError, match=r"rows\.jsonl\.early is a link; remove it"):
        RowFile(tmp_path / "rows.jsonl", SETTINGS)
    assert not other.exists()
