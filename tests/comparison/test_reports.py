"""Reports have no claims beyond the evidence, and no links to the outside."""

import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from jaxsr.comparison.compare_engines import compare_engines
from jaxsr.comparison.comparison_report import as_json, report_of
from jaxsr.comparison.report import Line, Report, Table, as_text, html_page, print_report
from jaxsr.comparison.summary import block_of, headline, notes, token_lines
from tests.comparison.faults import FAULTS, TORCH


@pytest.fixture(scope="module")
def wrong(subject):
    """`wrong(name)`: the comparison that finds a planted fault."""

    def compare(name):
        fault = next(fault for fault in FAULTS if fault.name == name)
        made = subject(fault.family)
        return compare_engines(made, TORCH, TORCH, other=fault.faulty(made), reference=True)[0]

    return compare


class Balanced(HTMLParser):
    """Checks that every element is closed, in order."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["dropped residual", "cache slot off by one"])
def test_page_is_whole_and_needs_nothing_else(wrong, name):
    comparison = wrong(name)
    source = html_page(report_of(comparison))
    parser = Balanced()
    parser.feed(source)
    assert parser.open == [] and "script" not in parser.seen
    assert not re.search(r"https?:|url\(|@import", source)
    drawings = re.findall(r"<svg.*?</svg>", source, re.S)
    assert len(drawings) == 2  # everything, and the block that was found
    for drawing in drawings:
        root = ET.fromstring(drawing)
        marks = [e for e in root.iter("circle") if e.get("class") == "suspect"]
        assert marks
        width, height = map(float, str(root.get("viewBox")).split()[2:])
        for mark in root.iter("circle"):
            assert 0 <= float(str(mark.get("cx"))) <= width
            assert 0 <= float(str(mark.get("cy"))) <= height
    place = comparison.findings[0].row.call.place
    assert place in source and 'class="finding"' in source


def test_words_are_as_honest_as_the_evidence(wrong, subject):
    comparison = wrong("dropped residual")
    said = headline(comparison)
    assert said.startswith(f"DIFFER: first found among {comparison.checked} operations checked: ")
    assert "stem.2 · add" in said and "lacks add" in said
    assert any("a fused program may round otherwise" in note for note in notes(comparison))
    assert any("1 operations are the first side's only" in note for note in notes(comparison))
    agreed, *_ = compare_engines(subject("span"), TORCH, TORCH)
    assert headline(agreed).startswith("AGREE: no operation errs") and "checked" in headline(agreed)


def test_default_precision_on_an_accelerator_is_named(subject):
    comparison, *_ = compare_engines(subject("span"), TORCH, TORCH)
    header = comparison.second
    header["side"] = header["side"].replace("precision=highest", "precision=default")
    assert not any("default precision" in note for note in notes(comparison))
    header["device"] = "tpu: TPU v6e"
    assert any("default precision" in note and "tpu" in note for note in notes(comparison))


def test_tokens_are_named(wrong):
    comparison = wrong("cache slot off by one")
    lines = token_lines(comparison, lambda token: f"<{token}>")
    assert lines[0].startswith("tokens: 1 of 2 equal") or lines[0].startswith("tokens: 2 of 2")
    if comparison.divergence is not None:
        assert "first divergent token at step 1: <" in lines[1]


def test_json_is_json(wrong):
    comparison = wrong("pixel shuffle in another order")
    content = json.loads(json.dumps(as_json(comparison), allow_nan=False))
    assert content["agree"] is False
    assert content["findings"][0]["place"].startswith("upsampling.0.phase_shift")
    assert len(content["operations"]) == len(comparison.rows)
    both = [row for row in content["operations"] if row["sides"] == "both"]
    assert len(both) == content["checked"]
    assert all("local" in row and "local_against_float64" in row for row in both)


def test_terminal(wrong, capsys):
    print_report(report_of(wrong("wrong eps of BatchNorm")))
    out = capsys.readouterr().out
    for part in ("by block", "modules of decoder_1.0", "operations around", "decoder_1.0.bn1"):
        assert part in out
    assert "\x1b" not in out  # no colours where nobody sees them


@pytest.mark.parametrize(
    ("path", "block"),
    [
        ("", "(root)"),
        ("conv_init", "conv_init"),
        ("encoder_0.0.conv1", "encoder_0.0"),
        ("stem.2", "stem.2"),
        ("model.layers.12.self_attn.q_proj", "model.layers.12"),
        ("model.norm", "model"),
        ("blocks.1.c2_r", "blocks.1"),
    ],
)
def test_blocks(path, block):
    assert block_of(path) == block


def test_an_ill_conditioned_operation_is_named_with_its_condition(subject):
    comparison, *_ = compare_engines(subject("span"), TORCH, TORCH)
    assert not any("ill-conditioned" in note for note in notes(comparison))
    row: Any = next(row for row in comparison.rows if row.total and row.total_threshold)
    row.total = replace(row.total, relative=1.0)
    row.total_threshold, row.inherited = 0.25, 4e-3
    (note,) = [note for note in notes(comparison) if "ill-conditioned" in note]
    assert row.call.place in note and "(condition 250)" in note
    assert headline(comparison).startswith("AGREE")
    row.inherited = 0.5  # its inputs were off already
    assert not any("ill-conditioned" in note for note in notes(comparison))


def test_a_narrow_terminal_breaks_tables_between_words_alone(monkeypatch):
    headings = ("module", "operations", "total, worst", "total, at its end", "local, worst", "at")
    cells = ("middle_layer.1", "26", "1.0e-01", "4.2e-03", "6.7e-03", "interpolate")
    table = Table(title="by block", headings=headings, lines=[Line(cells=cells)], left=(0, 5))
    report = Report(title="a", status="ok", headline="b", lines=(), tables=[table], notes=())
    monkeypatch.setattr("jaxsr.comparison.report.WIDTH", 72)
    words = as_text(report).split()
    assert {*" ".join((*headings, *cells)).split()} <= {*words}


def test_names_of_layers_are_neither_markup_nor_control_the_terminal(capsys):
    name = "[/x] [red]a :smile: \x1b[31mb\u202e"
    table = Table(title=name, headings=["name"], left=(0,), lines=[Line((name,))])
    report = Report(title=name, status="ok", headline="b", lines=(name,), tables=[table])
    shown = "[/x] [red]a :smile: \\x1b[31mb\\u202e"
    assert [line.rstrip() for line in as_text(report).split("\n")] == [
        f"{shown}: b",
        shown,
        shown,
        "name",
        shown,
    ]
    print_report(report)
    assert "\x1b" not in capsys.readouterr().out


def test_a_reader_that_closes_the_output_is_told_to_the_caller():
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    report = Report(title="a", status="ok", headline="b", lines=(), tables=())
    with pytest.raises(BrokenPipeError):
        print_report(report, file=Closed())
