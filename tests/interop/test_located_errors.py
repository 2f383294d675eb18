"""A refusal names the user's line: submodule, file, source line, shape and workaround."""

import re
import traceback

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax
from jaxsr.interop.mesh import make_mesh

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x  # the branch


class Numpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.tanh(x))  # the numpy call


class Listing(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = []
        self.calls = 0

    def forward(self, x):
        self.history.append(x.mean())  # the write
        return x + self.history[0]


class Counter(Listing):
    def forward(self, x):
        self.calls += 1  # the count
        return x


class Own(nn.Module):
    def forward(self, x):
        raise KeyError("missing")  # the user's own fault


FAULTS = {
    Branch: (r"on bool\[\]: the value of a traced tensor.*torch\.where", "the branch"),
    Numpy: (r"needs the values of a traced tensor", "the numpy call"),
    Listing: (r"forward keeps a tensor in `self\.1\.history\[0\]`.*make it a buffer", "the write"),
    Counter: (r"forward changes `1\.calls` from 0 to 1.*make it a buffer", "the count"),
    Own: (r"KeyError: 'missing'", "the user's own fault"),
}


def _error(kind):
    jm = to_jax(nn.Sequential(nn.Linear(3, 3), kind()))
    with pytest.raises(Exception) as error:
        jax.jit(jm.apply)(jm.params, jm.buffers, X)
    return error


@pytest.mark.parametrize("kind", FAULTS)
def test_a_message_names_the_line(kind):
    error = _error(kind)
    pattern, comment = FAULTS[kind]
    message = error.value.args[0]
    assert re.search(pattern, message, re.DOTALL), message
    line = re.search(r"test_located_errors\.py:(\d+) `(.*?)`", message)
    assert line is not None, message
    with open(__file__) as file:
        source = file.read().splitlines()[int(line[1]) - 1].strip()
    assert line[2] == source and source.endswith(f"# {comment}")
    if kind not in (Listing, Counter):
        assert "submodule '1'" in message
    assert isinstance(error.value, KeyError if kind is Own else UnsupportedTorchError)


def test_a_shape_is_named():
    class Item(nn.Module):
        def forward(self, x):
            return x * x[0, 0].item()

    jm = to_jax(Item())
    with pytest.raises(UnsupportedTorchError, match=r"Item at .*`return x \* .*on float32\[\]: "):
        jm.apply({}, {}, X)


NEEDS = {
    "branch": (lambda x: x if x.sum() > 0 else -x, r"on bool\[\]: .* a branch.*torch\.where"),
    "item": (lambda x: x * x.mean().item(), r"on float32\[\]: .* \.item\(\); leave it out"),
    "float": (lambda x: x * float(x.mean()), r"float\(\); leave it out"),
    "int": (lambda x: x * int(x.mean()), r"int\(\) or a size; take sizes from shapes"),
    "index": (lambda x: [x, -x][x.argmax()], r"an index, a size or range\(\); use torch\.gather"),
}


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", NEEDS)
def test_what_needs_a_value_is_named_with_its_alternative(name):
    function, pattern = NEEDS[name]
    jm = to_jax(Calls(function))
    with pytest.raises(UnsupportedTorchError, match=pattern):
        jax.jit(jm.apply)({}, {}, X)


def test_backward_within_forward_says_what_to_do_and_names_no_engine():
    from jaxsr.runtime.jax_runner import JaxRunner

    runner = JaxRunner(Calls(lambda x: x.sum().backward()), mesh=make_mesh(1))
    with pytest.raises(
        UnsupportedTorchError, match=r"backward\(\) inside forward; .* torch.autograd.grad"
    ) as error:
        runner.submit(X)
    assert "--engine" not in str(error.value)
    runner = JaxRunner(Calls(lambda x: x * x.mean().item()), mesh=make_mesh(1))
    with pytest.raises(UnsupportedTorchError, match="--engine torch runs the network as it is"):
        runner.submit(X)


def _files(error):
    return [frame.filename for frame in traceback.extract_tb(error.value.__traceback__)]


def test_frames_of_frameworks_are_hidden_unless_asked_for():
    error = _error(Branch)
    inner = "/interop/_core/"
    assert sum(inner in name for name in _files(error)) <= 2  # run, and the one that calls it
    assert not any("/torch/" in name for name in _files(error))
    assert error.value.__suppress_context__
    before = jax.config.jax_traceback_filtering
    try:
        jax.config.update("jax_traceback_filtering", "off")
        assert sum(inner in name for name in _files(_error(Branch))) > 3
    finally:
        jax.config.update("jax_traceback_filtering", before)
