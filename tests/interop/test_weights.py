"""Safetensors files: ours come back with their metadata, others' metadata is plain text."""

import os

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import save_file

from jaxsr.errors import DamagedFileError, InputError
from jaxsr.interop.host_arrays import to_numpy
from jaxsr.interop.weights import export_weights, open_safetensors, read_weights


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


def test_a_file_of_others_that_names_jaxsr_has_no_digest(tmp_path):
    path = tmp_path / "own.safetensors"
    save_file({"jaxsr_head": np.ones(2, np.float32)}, path, {"note": "for jaxsr"})
    with open_safetensors(path) as file:
        assert file.get_tensor("jaxsr_head").tolist() == [1, 1]


def test_narrow_dtypes_are_read_by_torch_and_here(tmp_path):
    values = torch.tensor([[0.5, -2], [1, 0]])
    dtypes = (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.bool)
    tensors = {str(dtype): values.to(dtype) for dtype in dtypes}
    export_weights(tmp_path / "a.safetensors", {n: to_numpy(t) for n, t in tensors.items()})
    read = safetensors.torch.load_file(tmp_path / "a.safetensors")
    arrays, _ = read_weights(tmp_path / "a.safetensors")
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(arrays[name], to_numpy(tensor), strict=True)
        assert read[name].dtype == tensor.dtype and torch.equal(read[name].float(), tensor.float())


@pytest.mark.parametrize("kind", ["e4m3fnuz", "e5m2fnuz", "e8m0fnu"])
def test_rarer_eight_bit_floats_are_read(tmp_path, kind):
    tensor = torch.arange(16, dtype=torch.uint8).view(getattr(torch, f"float8_{kind}"))
    safetensors.torch.save_file({"a": tensor}, tmp_path / "a.safetensors")
    array = read_weights(tmp_path / "a.safetensors")[0]["a"]
    assert array.dtype.name == f"float8_{kind}"
    np.testing.assert_array_equal(array.astype(np.float32), tensor.float().numpy())


def test_a_name_that_is_not_utf8_is_said(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.safetensors")
    export_weights(tmp_path / "weights.safetensors", {"w": np.zeros(1)}, metadata={})
    (tmp_path / "weights.safetensors").rename(path)
    with pytest.raises(InputError, match="is not UTF-8; rename it or choose another"):
        read_weights(path)


def test_a_file_cut_short_is_refused(tmp_path):
    save_file({"a": np.zeros(200)}, tmp_path / "w.safetensors")
    content = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "w.safetensors").write_bytes(content[:-9])
    with pytest.raises(InputError, match="not a complete safetensors file"):
        read_weights(tmp_path / "w.safetensors")


def test_a_file_of_another_size_than_its_header_says_is_not_read(tmp_path):
    path = tmp_path / "w.safetensors"
    export_weights(path, {"a": np.zeros(3, np.float32), "b": np.zeros((0, 2))})
    assert read_weights(path)[0]["a"].shape == (3,)
    os.truncate(path, 2**40)
    with pytest.raises(DamagedFileError, match="does not agree with the digest in it"):
        read_weights(path)


def test_any_flipped_bit_of_our_own_file_is_noticed(tmp_path):
    path, rng = tmp_path / "w.safetensors", np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(20, 3)).astype(np.float32), "b": np.arange(4)}
    export_weights(path, arrays, metadata={"config": {"width": 20}})
    content = path.read_bytes()
    for _ in range(200):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        with pytest.raises(InputError):
            read_weights(path)
    path.write_bytes(content[:-8] + bytes(8))
    with pytest.raises(DamagedFileError, match="does not agree with the digest in it"):
        read_weights(path)
