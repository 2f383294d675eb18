"""Safetensors files: ours come back with their metadata, others' metadata is plain text."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxsr.errors import InputError
from jaxsr.interop.weights import export_weights, read_weights


def test_arrays_and_metadata_come_back(tmp_path):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.arange(3, dtype=np.int32)}
    export_weights(tmp_path / "w.safetensors", arrays, metadata={"step": 3, "config": {"x": [1]}})
    read, notes = read_weights(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(read["a"], arrays["a"])
    assert read["n"].dtype == np.int64  # torch's index type
    assert notes == {"step": 3, "config": {"x": [1]}}


def test_metadata_of_other_writers_is_text(tmp_path):
    save_file({"a": np.zeros(2)}, tmp_path / "w.safetensors", metadata={"format": "pt"})
    assert read_weights(tmp_path / "w.safetensors")[1] == {"format": "pt"}


def test_a_file_cut_short_is_refused(tmp_path):
    save_file({"a": np.zeros(200)}, tmp_path / "w.safetensors")
    content = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "w.safetensors").write_bytes(content[:-9])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        read_weights(tmp_path / "w.safetensors")
