"""The command `python -m jaxsr.generate`, called by tests."""

import json

from jaxsr import generate


def run(capsys, *arguments):
    """The command's exit status, standard output and standard error."""
    capsys.readouterr()  # what fixtures printed
    status = generate.main([*map(str, arguments), "--platform", "cpu"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def lines(path):
    """The rows in a file."""
    return [json.loads(line) for line in path.open(encoding="utf-8")]
