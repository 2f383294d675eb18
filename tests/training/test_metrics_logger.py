"""Lines of `metrics.jsonl` and for a person, over resumed runs."""

import os

import pytest

from jaxsr.errors import InputError
from jaxsr.interop.sealed_json import seal
from jaxsr.training.metrics_logger import Records


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ((0,), "1"),
        ((2, 3, 5), "3 to 4, 6"),
        ((6, 7), "7 to 8"),
        ((0, 2, 4, 6), "1, 3, 5, 7"),
        ((), ""),
    ],
)
def test_a_resume_names_the_steps_that_metrics_lack(tmp_path, caplog, lost, words):
    def open_records(step: int, **branched: bool) -> Records:
        return Records(
            tmp_path,
            start_step=step,
            total_steps=9,
            batch=1,
            **branched,  # pyright: ignore
        )

    first = open_records(0)
    first.steps(8, "main", {step: {"loss": 1.0} for step in range(1, 9)})
    first.close()
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for n, line in enumerate(lines) if n not in lost))
    caplog.clear()
    open_records(8).close()
    assert caplog.messages == ([f"{path} has no lines of steps {words}"] if words else [])
    caplog.clear()
    for own_lines in lines[4:], []:  # none: killed before its first step
        path.write_bytes(b"".join(own_lines))
        open_records(8, branched=True).close()
        assert not caplog.messages


def test_metrics_of_terabytes_are_not_read(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_text(seal({"step": 1, "phase": "x"}) + "\n")
    os.truncate(path, 2**40)
    with pytest.raises(InputError, match=r"has more than .* bytes; move it away; the run goes on"):
        Records(tmp_path, start_step=1, total_steps=2, batch=1)
    os.truncate(path, 2**22)  # one line without an end
    Records(tmp_path, start_step=1, total_steps=2, batch=1).close()
    assert len(path.read_bytes().splitlines()) == 1


@pytest.mark.parametrize("step", ["x", float("inf"), None, [1]])
def test_lines_of_metrics_without_a_step_are_damaged(tmp_path, caplog, step):
    (tmp_path / "metrics.jsonl").write_text(seal({"step": step}) + "\n")
    Records(tmp_path, start_step=1, total_steps=2, batch=1).close()
    assert "1 damaged line" in caplog.text


def test_metrics_of_any_length_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxsr.training.metrics_logger._MOST_BYTES", 2**20)
    (tmp_path / "metrics.jsonl").touch()
    os.truncate(tmp_path / "metrics.jsonl", 2**40)  # sparse
    with pytest.raises(InputError, match=r"metrics\.jsonl has more than 1,048,576 bytes"):
        Records(tmp_path, start_step=1, total_steps=2, batch=1)


def test_compiling_does_not_count_in_rate_and_eta(tmp_path, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("jaxsr.training.metrics_logger.time.perf_counter", lambda: clock[0])
    records = Records(tmp_path, start_step=0, total_steps=100, batch=1)
    clock[0] = 60.0  # a minute of compiling, after which the first step runs
    records.compiled(1)
    clock[0] = 70.0
    figures = {"net/grad_norm": 2.0, "net/loss": 1.0, "net/lr": 0.5}
    records.steps(10, "main", {step: figures for step in range(1, 11)})
    records.close()
    line = "step 10/100  loss 1  lr 0.5  1.0 images/s  ETA 1:30  main  grad_norm 2\n"
    assert capsys.readouterr().out == (tmp_path / "log.txt").read_text() == line


def test_quiet_leaves_warnings(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAXSR_QUIET", "1")
    records = Records(tmp_path, start_step=0, total_steps=1, batch=1)
    records.say("a line")
    records.warn("a warning")
    records.close()
    assert capsys.readouterr() == ("", "a warning\n")
    assert (tmp_path / "log.txt").read_text() == "a line\na warning\n"
