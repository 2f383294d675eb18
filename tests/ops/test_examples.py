"""Every public function has an example in its docstring, which runs."""

import doctest

import numpy as np
import pytest

from jaxsr import ops

FUNCTIONS = [name for name in ops.__all__ if not isinstance(getattr(ops, name), type)]


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.usefixtures("unchecked_types")
def test_example(name):
    function = getattr(ops, name)
    tests = doctest.DocTestFinder(recurse=False).find(function, name)
    examples = [test for test in tests if test.examples]
    assert examples, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in examples:
        test.globs = {"ops": ops, "np": np}
        messages: list[str] = []
        assert runner.run(test, out=messages.append).failed == 0, "".join(messages)
