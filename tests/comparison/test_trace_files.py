"""Traces on disk: what comes back, what is refused and in which words."""

import errno
import json
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from jaxsr.compare import main
from jaxsr.comparison.recorded_trace import make_trace, open_backend
from jaxsr.comparison.trace_file import load_trace, save_trace
from jaxsr.errors import InputError
from jaxsr.interop.sealed_json import seal, unseal
from tests.comparison.faults import TORCH


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Folders of traces: `span` twice, `llama`, and `llama` on another prompt."""
    root = tmp_path_factory.mktemp("traces")

    def trace(name, *words):
        out = root / name
        assert (
            main(["trace", "--engine", "torch", "--platform", "cpu", "--out", str(out), *words])
            == 0
        )
        return out

    trace("span", "--model", "span", "--size", "16", "--keep", "conv_1:*", "blocks.*.c2_r:conv2d")
    trace("again", "--model", "span", "--size", "16")
    trace("larger", "--model", "span", "--size", "24")
    trace("llama", "--model", "llama", "--steps", "2")
    trace("prompt", "--model", "llama", "--steps", "2", "--prompt", "Other")
    trace("modules", "--model", "span", "--size", "16", "--granularity", "module")
    return root


def test_comes_back_as_it_was(subject, tmp_path):
    llama = subject("llama")
    trace = make_trace(llama, open_backend(llama, TORCH), keep=("model.norm:mul",))
    save_trace(trace, tmp_path)
    back = load_trace(tmp_path)
    assert back.header == json.loads(json.dumps(trace.header))
    assert back.tokens == trace.tokens and len(back.outputs) == 2
    for a, b in zip(trace.outputs, back.outputs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert {n: (w.digest, w.dtype) for n, w in trace.weights.items()} == {
        n: (w.digest, w.dtype) for n, w in back.weights.items()
    }
    stored = 0
    for a, b in zip(trace.records, back.records, strict=True):
        assert a.call == b.call
        for x, y in zip(a.figures, b.figures, strict=True):
            assert x.as_row() == y.as_row()
            np.testing.assert_array_equal(x.sample, y.sample)
        assert a.tensors.keys() == b.tensors.keys()
        stored += bool(b.tensors)
        for name in a.tensors:
            np.testing.assert_array_equal(a.tensors[name], b.tensors[name])
    assert stored == 4  # two products of the norm in each of two steps


def test_others_can_read_it(recorded):
    """Plain JSON and safetensors: no library of ours is needed."""
    content = json.loads((recorded / "span" / "trace.json").read_text())
    header = content["header"]
    assert header["versions"]["torch"] and header["matmul_precision"] == "highest"
    assert header["device"] == "cpu: cpu" and "equal to the bit" in header["recorder"]
    first = content["operations"][0]
    assert (first["path"], first["operation"], first["order"]) == ("conv_1", "conv2d", 0)
    assert first["results"] == [[[1, 24, 16, 16], "float32"]]
    assert first["operands"][1] == ["parameter", "conv_1.weight", [24, 3, 3, 3], "float32"]
    with safe_open(recorded / "span" / "tensors.safetensors", framework="np") as file:
        stored = file.get_tensor("whole/0/out0")
        start, length = first["figures"][0]["sample"]
        sample = file.get_tensor("samples")[start : start + length]
    assert first["figures"][0]["mean"] == pytest.approx(stored.mean(dtype=np.float64))
    assert set(sample) <= set(stored.astype(np.float64).ravel())


def run(capsys, *words):
    status = main([str(word) for word in words])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_two_folders_are_compared(recorded, tmp_path, capsys):
    status, out, _ = run(capsys, recorded / "span", recorded / "again", "--out", tmp_path / "c")
    assert status == 0
    assert "AGREE: no operation differs by more" in out and "(44 operations checked)" in out
    assert "stored traces cannot run an operation again" in " ".join(out.split())
    written = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert written["agree"] and written["checked"] == 44 and written["findings"] == []
    assert all(row["total"]["relative"] == 0 for row in written["operations"])
    page = (tmp_path / "c" / "comparison.html").read_text()
    assert "<svg" in page and "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("span", "llama", "different models"),
        ("span", "larger", "different inputs"),
        ("llama", "prompt", "different inputs: 'What is the capital of France?'"),
        ("span", "modules", "granularity operation"),
        ("span", "nowhere", "lacks trace.json"),
    ],
)
def test_traces_that_do_not_compare(recorded, tmp_path, capsys, first, second, message):
    out = tmp_path / "c"
    status, said, err = run(capsys, "traces", recorded / first, recorded / second, "--out", out)
    assert status == 2 and said == ""
    line = [x for x in err.splitlines() if x.startswith("jaxsr: ")]
    assert len(line) == 1 and message in line[0] and "; " in line[0]
    assert not out.exists()


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def edit(**changes):
    def change(path):
        content = unseal(path.read_bytes(), source=path)
        for name, value in changes.items():
            content[name] = value(content[name])
        path.write_text(seal(content))

    return change


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("trace.json", cut, "cut off, damaged or no trace"),
        ("trace.json", flip, "cut off, damaged or no trace"),
        ("trace.json", lambda p: p.write_text("[]"), "cut off, damaged or no trace"),
        ("trace.json", lambda p: p.write_bytes(b"\xff\xfe"), "cut off, damaged or no trace"),
        ("trace.json", lambda p: p.write_text(seal({"a": 1})), "is not a trace"),
        ("trace.json", edit(header=lambda h: h | {"format": 99}), "format 99"),
        ("trace.json", edit(operations=lambda rows: [{"step": 0}]), "does not describe a trace"),
        ("trace.json", edit(outputs=lambda n: 7), "does not describe a trace"),
        ("tensors.safetensors", cut, "damaged, or of another trace"),
        ("tensors.safetensors", flip, "damaged, or of another trace"),
        ("tensors.safetensors", lambda p: p.unlink(), "lacks tensors.safetensors"),
    ],
)
def test_damaged_traces(recorded, tmp_path, capsys, file, damage, message):
    folder = tmp_path / "damaged"
    shutil.copytree(recorded / "span", folder)
    damage(folder / file)
    status, _, err = run(capsys, "traces", recorded / "again", folder, "--out", tmp_path / "c")
    assert status == 2
    assert err.startswith("jaxsr: ") and err.count("\n") == 1 and message in err
    assert str(folder) in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trace", "--model", "resnet"], "no model 'resnet'"),
        (["trace", "--model", "span", "--image", "no.png"], "no image at no.png"),
        (["trace", "--model", "span", "--size", "3"], "size must be at least 16"),
        (["trace", "--model", "llama", "--steps", "0"], "steps must be at least 1"),
        (["trace", "--model", "llama", "--prompt", ""], "prompt is empty"),
        (["trace", "--model", "span", "--engine", "torch", "--platform", "tpu"], "cpu or cuda"),
        (["trace", "--model", "span", "--dtype", "float64"], "float64 is for engine=torch"),
        (["trace"], "--model"),
        (["engines", "--model", "span", "--b", "cuda"], "engine must be one of jax, torch"),
        (["engines", "--model", "span", "--b", "jax,speed=9"], "'speed=9' is none of"),
        (["engines", "--model", "span", "--b", "jax,jax"], "names its engine twice"),
        (["engines", "--model", "span", "--a", "torch", "--b", "torch", "--within", "stem"],
         "is not a module of Span"),
        (["traces", "only-one"], "traces"),
        (["trace", "--model", "span", "--out", "run"], "run is the folder of a run or a model"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    status, _, err = run(capsys, *words)
    assert status == 2
    line = [x for x in err.splitlines() if x.startswith("jaxsr: ")]
    assert len(line) == 1 and message in line[0], err
    assert not (tmp_path / "runs").exists()


def test_stored_traces_of_other_weights_differ_whatever_their_results(tmp_path, capsys):
    """A weight that no result depends on enough: the same verdict as of two live engines."""
    from safetensors.torch import save_file

    from jaxsr.models.registry import random_network

    state = {name: tensor.clone() for name, tensor in random_network("span").state_dict().items()}
    save_file(state, tmp_path / "a.safetensors")
    state["blocks.2.c1_r.bias"][3] *= 1.00001
    save_file(state, tmp_path / "b.safetensors")
    for name in "ab":
        words = ["--model", tmp_path / f"{name}.safetensors", "--size", "16", "--engine", "torch"]
        assert run(capsys, "trace", *words, "--out", tmp_path / name)[0] == 0
    stored = run(capsys, tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c")
    live = run(
        capsys, "engines", "--model", tmp_path / "a.safetensors", "--model-b",
        tmp_path / "b.safetensors", "--a", "torch", "--b", "torch", "--size", "16", "--out",
        tmp_path / "d",
    )  # fmt: skip
    for status, out, _ in (stored, live):
        assert status == 1
        assert "DIFFER: the two sides have different weights" in " ".join(out.split())
    assert not json.loads((tmp_path / "c" / "comparison.json").read_text())["agree"]


@pytest.mark.parametrize(
    "changes",
    [
        {"operations": [3]},
        {"operations": "many"},
        {"weights": [1]},
        {"weights": {"a": {"digest": 1, "sample": [-5, 3]}}},
        {"weights": {"a": {"digest": 1, "sample": [0, 10**30]}}},
        {"outputs": 10**12},
        {"tokens": ["x"]},
        {"tokens": [1e999]},
        {"tokens": [1, 2]},
        {"outputs": 0},
        {"header.words": []},
        {"header.words": {"1": "\ud800"}},
        {"header.identity": 5},
        {"header.identity.inputs": None},
        {"header.side": "cobol"},
        {"header.recorder_difference": "x"},
        {"operations.0.figures.0.mean": "x"},
        {"operations.0.figures.0.beyond": -1},
        {"operations.0.operands": [["input", "0", 3, "float32"]]},
        {"operations.0.operands": [["magic", "0", [3], "float32"]]},
        {"operations.0.path": {}},
        {"operations.0.path": "a." * 9000},
        {"operations.0.order": None},
        {"operations.0.surplus": 1},
    ],
)
def test_forged_traces_are_one_line(recorded, tmp_path, changes):
    folder = shutil.copytree(recorded / "span", tmp_path / "t")
    content = unseal((folder / "trace.json").read_bytes(), source="t")
    ((place, forged),) = changes.items()
    *parts, last = (int(part) if part.isdecimal() else part for part in place.split("."))
    entry: Any = content
    for part in parts:
        entry = entry[part]
    entry[last] = forged
    (folder / "trace.json").write_text(seal(content))
    with pytest.raises(InputError, match=r"trace\.json does not describe a trace"):
        load_trace(folder)


def test_keep_that_matches_nothing(tmp_path, capsys):
    words = ("trace", "--model", "span", "--size", "16", "--engine", "torch", "--keep", "head:*")
    status, _, err = run(capsys, *words, "--out", tmp_path / "t")
    assert status == 2 and "matches no module:operation" in err


@pytest.mark.slow
def test_engines_as_a_command(tmp_path):
    """As a user runs it: a process of its own, exit status and files."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxsr.compare", "engines", "--model", "span", "--size", "16",
         "--b", "jax,platform=cpu", "--save-traces", "--out", "out"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "AGREE: no operation errs by more" in done.stdout
    assert "(44 operations checked)" in done.stdout
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert written["checked_locally"] == 44
    assert written["second"]["computed"] == "as one compiled program"
    assert load_trace(tmp_path / "out" / "second").name == "jax float32 on cpu"
    assert "<svg" in (tmp_path / "out" / "comparison.html").read_text()


def test_a_fault_is_status_1_and_its_tensors_are_kept(tmp_path, capsys):
    """Two weights files of one family, one with a single wrong number."""
    from safetensors.torch import save_file

    from jaxsr.models.registry import random_network

    network = random_network("span")
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    save_file(state, tmp_path / "good.safetensors")
    state["blocks.2.c1_r.bias"][3] += 0.01
    save_file(state, tmp_path / "bad.safetensors")
    status, out, _ = run(
        capsys, "engines", "--model", tmp_path / "good.safetensors", "--model-b",
        tmp_path / "bad.safetensors", "--a", "torch", "--b", "torch", "--size", "16", "--out",
        tmp_path / "out",
    )  # fmt: skip
    assert status == 1
    text = " ".join(out.split())
    assert "DIFFER: the two sides have different weights, blocks.2.c1_r.bias" in text
    assert "first found among 44 operations checked: blocks.2.c1_r · conv2d" in text
    assert "1 parameters or buffers differ: blocks.2.c1_r.bias" in " ".join(out.split())
    with safe_open(tmp_path / "out" / "suspects.safetensors", framework="np") as file:
        key = "step0/blocks.2.c1_r:conv2d:0"
        ours, theirs = (file.get_tensor(f"{key}/{s}_out0") for s in ("first", "second"))
    moved = np.abs(theirs - ours).max(axis=(0, 2, 3))
    np.testing.assert_allclose(moved[3], 0.01, rtol=1e-3)
    assert moved[[0, 1, 2, 4]].max() < 1e-6


def test_weights_that_have_the_name_of_a_traces_file_stay(tmp_path, capsys):
    (tmp_path / "tensors.safetensors").write_text("mine")
    status, _, err = run(capsys, "trace", "--model", "span", "--size", "16", "--out", str(tmp_path))
    assert status == 2 and "tensors.safetensors); choose another --out" in err
    assert (tmp_path / "tensors.safetensors").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path, capsys, monkeypatch):
    def unwritable(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("jaxsr.data.sources.tempfile.TemporaryFile", unwritable)
    words = ("trace", "--model", "span", "--size", "16", "--engine", "torch")
    status, _, err = run(capsys, *words, "--out", tmp_path / "new" / "trace")
    assert status == 2 and "Read-only file system" in err and "step 1" not in err
