"""`compare engines` on classes of a user's: random weights, inputs and outputs of all kinds."""

import json

import pytest
import torch

from jaxsr.compare import main

NETWORKS = """
import torch
from torch import nn


class Four(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(4, 2, 3)

    def forward(self, x):
        return self.layer(x)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 1, 3)

    def forward(self, x):
        return {"none": None, "map": self.layer(x)}


class Branch(Named):
    def forward(self, x):
        return x if x.mean() > 9 else self.layer(x)


class Wrong(Named):
    def forward(self, x):
        return self.layer(x).view(-1, 11)


class Words(Named):
    def forward(self, x):
        return "words"
"""


@pytest.fixture
def engines(tmp_path, monkeypatch, capsys):
    (tmp_path / "compared_nets.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def call(name, *words):
        status = main(["engines", "--model", f"compared_nets:{name}", "--size", "16", *words])
        return status, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("name", "words"), [("Four", ["--input", "2,4,8,8"]), ("Named", [])], ids=["inputs", "names"]
)
def test_a_class_without_weights_is_compared(engines, tmp_path, name, words):
    status, printed = engines(name, *words)
    assert (status, "random weights" in printed) == (0, True)
    report = json.loads((tmp_path / "runs" / "compare-engines" / "comparison.json").read_text())
    assert report["agree"] and report["checked"] >= 1


def test_weights_that_are_given_are_not_called_random(engines, tmp_path):
    from compared_nets import Named  # type: ignore[import-not-found]

    torch.save(Named().state_dict(), tmp_path / "named.pt")
    status, printed = engines("Named", "--weights", "named.pt")
    assert (status, "random weights" in printed) == (0, False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Four", "takes no image of 1 or 3 channels; give its inputs, such as --input"),
        ("Branch", "compared_nets.py:26 `return x if x.mean() > 9"),
        ("Wrong", "failed: RuntimeError"),
        ("Wrong", "(compared_nets.py:31); give inputs"),
        ("Words", "returned a str, not a tensor"),
    ],
)
def test_what_cannot_be_compared_is_one_line(engines, name, words):
    status, printed = engines(name)
    assert status == 2 and words in printed.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [(["engines", "runs/x"], "engines --model runs/x"), ([".", "nope"], "no folder nope"),
     (["."], ". is one folder")],
)  # fmt: skip
def test_wrong_words(capsys, words, message):
    assert main(words) == 2
    assert message in capsys.readouterr().err
