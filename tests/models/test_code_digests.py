"""Digests of the user's code: that of a file, or of what an earlier version left in memory."""

import importlib
import sys
import warnings

import pytest

from jaxsr.models.code_digests import code_digests

SOURCE = r"""
import functools
import torch

RATE, STEPS = 1, 2
NAME = "first"
PATTERN = "\d"
calls = 0

def decorated(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments)
    return inner

class Task:
    kind = "net"
    made = 0

    def __init__(self):
        type(self).made += 1

    @staticmethod
    def static(x):
        return [lambda y: y + i for i in range(x)]

    @functools.cached_property
    def property(self):
        return {1, 2} | {self.kind}

    @functools.lru_cache
    def kept(self):
        return 0.5

    @decorated
    @torch.no_grad()
    def wrapped(self):
        return self.kind in {"a", "b"}

def count():
    global calls
    calls += 1
    return calls
"""
EDITS = {
    "NAME": ('"first"', '"second"'),
    "kind": ('kind = "net"', 'kind = "other"'),
    "Task.static": ("y + i", "y - i"),
    "Task.property": ("{1, 2}", "{1, 3}"),
    "Task.kept": ("0.5", "0.25"),
    "Task.wrapped": ('"b"}', '"c"}'),
    "count": ("calls += 1", "calls += 2"),
    "code": ("class Task:", "class Task"),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_task.py"
    path.write_text(SOURCE)
    with warnings.catch_warnings(action="ignore"):  # "\\d"
        imported = importlib.import_module("edited_task")
    yield imported, path
    sys.modules.pop("edited_task")


@pytest.mark.parametrize("name", EDITS)
def test_code_that_was_edited_since_the_import_is_told_apart(module, caplog, name):
    imported, path = module
    for _ in range(3):
        imported.count(), imported.Task().kept(), imported.Task().wrapped(), imported.Task.static(3)
    before = code_digests()["edited_task"]
    assert not caplog.messages
    path.write_text(SOURCE.replace(*EDITS[name]))
    edited = code_digests()["edited_task"]
    assert f"{name} of {path} in memory is not the file's" in caplog.messages[0]
    path.write_text(SOURCE)
    assert code_digests()["edited_task"] == before != edited


def test_a_module_that_was_loaded_again_is_its_file(module, caplog):
    imported, path = module
    path.write_text(SOURCE.replace("0.5", "0.125") + "\n# longer than before\n")
    with warnings.catch_warnings(action="ignore"):
        importlib.reload(imported)
    code_digests()
    assert not caplog.messages
