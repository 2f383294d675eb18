"""Pickles of numpy arrays are read; anything else in a pickle is refused and never run."""

import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxsr.models.numpy_pickle import read_numpy_pickle

rng = np.random.default_rng(0)


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "f2", "f8", "i8", "u1"])
def test_arrays_come_back_as_pickle_gives_them(tmp_path, dtype, protocol):
    tree = {
        "a": {"kernel": (rng.random((3, 2, 4)) * 99).astype(dtype), "bias": np.zeros(4, dtype)},
        "b": np.asfortranarray((rng.random((5, 3)) * 99).astype(dtype)),
        "empty": np.zeros((0, 3), dtype),
    }
    file = tmp_path / "arrays.ckpt"
    file.write_bytes(pickle.dumps(tree, protocol=protocol))
    got = read_numpy_pickle(file)
    want = {"a/kernel": tree["a"]["kernel"], "a/bias": tree["a"]["bias"]}
    want |= {"b": tree["b"], "empty": tree["empty"]}
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
        torch.from_numpy(got[name])  # native byte order, writable


class Evil:
    """Pickles as a call of whatever it is given."""

    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize(
    "call",
    [os.system, eval, print, getattr, np.load, np.frombuffer, pickle.loads, torch.load],
    ids=lambda call: call.__name__,
)
def test_a_call_in_the_pickle_is_refused_and_never_run(tmp_path, call, monkeypatch):
    file = tmp_path / "evil.ckpt"
    victim = tmp_path / "victim"
    argument = f"touch {victim}" if call is os.system else "1"
    file.write_bytes(pickle.dumps({"a": np.zeros(2), "b": Evil(call, argument)}))
    with pytest.raises(ValueError, match="is refused: it holds more than numpy arrays") as error:
        read_numpy_pickle(file)
    assert "\n" not in str(error.value)
    assert not victim.exists()
    if call is os.system:
        pickle.loads(file.read_bytes())
        assert victim.exists()  # the bomb is real


@pytest.mark.parametrize(
    "content",
    [
        np.array([{"a": 1}, None], dtype=object),
        np.array(["text"]),
        np.zeros(2, dtype=[("x", "f4")]),
        np.float32(1),
        "text",
        [np.zeros(1)],
        {1: {2: {3, 4}}},
    ],
    ids=["objects", "text-array", "record", "scalar", "text", "list", "set"],
)
def test_what_is_not_a_dictionary_of_plain_arrays_is_refused(tmp_path, content):
    file = tmp_path / "other.ckpt"
    file.write_bytes(pickle.dumps({"w": content}))
    with pytest.raises(ValueError, match=r"other\.ckpt"):
        read_numpy_pickle(file)


def test_calling_an_allowed_name_makes_no_object(tmp_path):
    # numpy.ndarray((10**12,)) would ask for terabytes; numpy.dtype with odd arguments likewise
    # reaches numpy's parser. The stand-ins take neither.
    for call in (Evil(np.ndarray, (10**12,)), Evil(np.dtype, "O")):
        file = tmp_path / "call.ckpt"
        file.write_bytes(pickle.dumps({"w": call}))
        with pytest.raises(ValueError, match=r"call\.ckpt"):
            read_numpy_pickle(file)


def test_a_dictionary_within_itself_is_refused(tmp_path):
    tree: dict = {}
    tree["tree"] = tree
    file = tmp_path / "loop.ckpt"
    file.write_bytes(pickle.dumps(tree))
    with pytest.raises(ValueError, match=r"loop\.ckpt holds a dict at tree/tree"):
        read_numpy_pickle(file)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_gives_one_clear_error_or_arrays(tmp_path, data):
    content = bytearray(pickle.dumps({"a": np.arange(6, dtype="f4"), "b": np.zeros((2, 2))}))
    where = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[where:]
    else:
        content[where] = data.draw(st.integers(0, 255))
    file = tmp_path / "damaged.ckpt"
    file.write_bytes(content)
    try:
        arrays = read_numpy_pickle(file)
    except ValueError as error:
        assert "damaged.ckpt" in str(error)
    else:
        assert all(isinstance(array, np.ndarray) for array in arrays.values())


def test_an_absent_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weights file at .*none\.ckpt"):
        read_numpy_pickle(tmp_path / "none.ckpt")


def dictionary_of_dictionaries(depth: int) -> bytes:
    """Few bytes, `100 ** depth` entries: each dictionary holds the next one a hundred times."""
    tree: dict = {}
    for _ in range(depth):
        tree = {str(key): tree for key in range(100)}
    return pickle.dumps({"w": tree})


def arrays_from_one_string(count: int) -> bytes:
    """One string of a megabyte that `count` arrays are made of."""
    content, shape = b"\0" * 2**20, (2**20,)
    states = [(1, shape, np.dtype("u1"), False, content) for _ in range(count)]

    class Shared:
        def __init__(self, state):
            self.state = state

        def __reduce__(self):
            rebuild = np.zeros(1).__reduce__()[0]
            return rebuild, (np.ndarray, (0,), b"b"), self.state

    return pickle.dumps({str(k): Shared(state) for k, state in enumerate(states)})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "object number 2147483647"),
        (b"\x80\x04" + b"}" * 200_000 + b".", "more than 100000 operations"),
        (dictionary_of_dictionaries(8), "more than 100000 entries"),
        (arrays_from_one_string(50), "arrays of more bytes than the file"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x0f", "cannot be read"),
    ],
    ids=["memo", "opcodes", "dictionaries", "arrays", "length"],
)
def test_memory_and_time_are_bounded(tmp_path, content, reason):
    import resource
    import time

    file = tmp_path / "bomb.ckpt"
    file.write_bytes(content)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(ValueError, match=reason):
        read_numpy_pickle(file)
    assert time.monotonic() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
