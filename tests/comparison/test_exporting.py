"""Files of `jaxsr.export`, run by JAX and onnxruntime without torch, give torch's results."""

import os
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import export
from torch import nn

import jaxsr
from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.export_options import ExportConfig
from jaxsr.comparison.exporting import _reference_of_two, _run_stablehlo
from jaxsr.errors import InputError
from jaxsr.export import main

NETS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        tokens = torch.relu(self.norm(self.conv(x))).flatten(2).mT
        mixed, _ = self.attention(tokens, tokens, tokens)
        return {"logits": self.head(mixed.mean(1)), "features": [tokens, mixed]}


class Total(nn.Module):
    def forward(self, x):
        return x.sum()


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class BatchStatistics(nn.BatchNorm1d):
    def __init__(self):
        super().__init__(3, track_running_stats=False)


class Pairs(nn.Module):
    def forward(self, x):
        return x + x.reshape(2, -1).sum()


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x)


class Half(nn.Module):
    def forward(self, x):
        return (x.bfloat16() * 2).float()


class Rows(nn.Module):
    def forward(self, ids, scale):
        return nn.functional.one_hot(ids, 5).float() * scale


def trained():
    layer = nn.Linear(2, 1)
    layer.load_state_dict({"weight": torch.tensor([[3.0, 2.0]]), "bias": torch.tensor([1.0])})
    return layer
"""


@pytest.fixture(autouse=True)
def nets(tmp_path, monkeypatch):
    (tmp_path / "exported_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("exported_nets", None)


def test_a_file_takes_any_batch(tmp_path, capfd):
    path = tmp_path / "net.stablehlo"
    arguments = ["--model", "exported_nets:Net", "--input", "2,3,8,8", "--out", str(path)]
    assert main(arguments) == 0
    assert "input float32[b,3,8,8]; for cpu, cuda, tpu" in capfd.readouterr().out
    program = export.deserialize(path.read_bytes())
    outputs = program.call(jnp.ones((5, 3, 8, 8)))
    assert {n: v.shape for n, v in dict(outputs).items()} == {
        "logits": (5, 4), "features[0]": (5, 64, 8), "features[1]": (5, 64, 8),
    }  # fmt: skip
    assert os.listdir(tmp_path).count("net.stablehlo") == 1


def test_weights_of_a_function_are_its_own(capfd):
    words = ["--model", "exported_nets:trained", "--input", "1,2", "--out", "net.stablehlo"]
    assert main(words) == 0
    assert "the weights are those that its own code makes" in capfd.readouterr().out
    program = export.deserialize(bytearray(Path("net.stablehlo").read_bytes()))
    assert program.call(jnp.ones((1, 2))) == 6


def test_a_hugging_face_folder_needs_its_weights(tmp_path, capfd):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, intermediate_size=16, **sizes)
    net = transformers.BertForMaskedLM(config).eval()
    net.save_pretrained("bert", max_shard_size="5KB")
    words = ["--model", "bert", "--input", "input_ids=int64:2,4:50", "--out", "bert.stablehlo"]
    assert main(words) == 2
    assert "--model bert alone has random weights; add --weights" in capfd.readouterr().err
    assert main([*words, "--weights", "bert"]) == 0
    ids = torch.arange(8).reshape(2, 4)
    program = export.deserialize(bytearray(Path("bert.stablehlo").read_bytes()))
    with torch.no_grad():
        expected = net(ids).logits.numpy()
    outputs = program.call(ids.int().numpy())
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5, atol=1e-6)


def test_a_hugging_face_folder_of_earlier_names(capfd):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8}
    config = transformers.ViTConfig(intermediate_size=16, patch_size=4, num_labels=3, **sizes)
    net = transformers.ViTForImageClassification(config).eval()
    net.save_pretrained("vit")
    words = ["--model", "vit", "--weights", "vit", "--input", "2,3,8,8", "--out", "vit.stablehlo"]
    assert main(words) == 0, capfd.readouterr().err
    program = export.deserialize(bytearray(Path("vit.stablehlo").read_bytes()))
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = net(x).logits.numpy()
    np.testing.assert_allclose(program.call(x.numpy())["logits"], expected, rtol=1e-4, atol=1e-5)
    Path("vit/model.safetensors").write_bytes(b"")
    assert main(words) == 2
    assert "vit cannot be loaded" in capfd.readouterr().err


def test_the_function_equals_torch():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten()).eval()
    program = jaxsr.export_stablehlo(net, torch.zeros(1, 3, 6, 6), platforms=("cpu", "tpu", "cpu"))
    assert program.platforms == ("cpu", "tpu")
    images = torch.randn(3, 3, 6, 6)
    stored = export.deserialize(program.serialize())
    with torch.no_grad():
        expected = net(images).numpy()
    np.testing.assert_allclose(np.asarray(stored.call(jnp.asarray(images))), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["exported_nets:Total"], 2, "output has shape () for a batch of 2"),
        (["exported_nets:Total", "--fixed-batch"], 0, ""),
        (["exported_nets:Centred"], 1, "the file gives other values than torch"),
        (["exported_nets:Centred", "--fixed-batch"], 0, ""),
        (["exported_nets:Centred", "--input", "1,4"], 1, "the file gives other values than torch"),
        (["exported_nets:BatchStatistics", "--input", "1,3,4"], 1, "the file gives other values"),
        (["exported_nets:Pairs", "--input", "2,3"], 2, "fails in torch on input float32[1,3]"),
        (["exported_nets:Rows", "--input", "int64:2:5", "3,2,5"], 2, "share no batch axis"),
        (["exported_nets:Net", "--out", "absent/net.stablehlo"], 2, "no folder absent"),
        (["exported_nets:Net", "--out", "."], 2, "is a folder"),
        (["exported_nets:Net", "--platforms", "cpu,tpu"], 2, "separate several by spaces"),
        (["exported_nets:Noisy"], 2, "draws random numbers in evaluation mode"),
        (["exported_nets:Noisy", "--fixed-batch"], 2, "make them an input of forward"),
        (["exported_nets:Spectrum"], 2, "give other platforms, or a fixed batch"),
        (["exported_nets:Spectrum", "--fixed-batch"], 0, ""),
    ],
)  # fmt: skip
def test_what_depends_on_the_batch_needs_it_fixed(arguments, status, message, tmp_path, capfd):
    model, *rest = arguments
    inputs = [] if "--input" in rest else ["--input", "2,4"]
    out = [] if "--out" in rest else ["--out", "a.stablehlo"]
    assert main(["--model", model, *inputs, *out, *rest]) == status
    assert message in capfd.readouterr().err
    assert (tmp_path / "a.stablehlo").exists() == (status == 0)


class Ascending(nn.Module):
    def forward(self, x):
        if (x.diff() < 0).any():
            raise ValueError("x must ascend")
        return x


@pytest.mark.parametrize(("net", "is_repeated"), [(Ascending(), True), (nn.Identity(), False)])
def test_values_that_torch_refuses_are_repeated(net, is_repeated, tmp_path):
    arguments = Arguments.of([torch.arange(12.0)[None]], {})
    config = ExportConfig(model="x", out=tmp_path / "a.stablehlo")
    (got,) = _reference_of_two(net, arguments, config).single.outputs.values()
    assert got.shape == (2, 12) and set(got[1]) <= set(got[0])
    assert np.array_equal(*got) == is_repeated


def test_weights_that_no_file_holds_are_refused(monkeypatch, capfd):
    from jaxsr.comparison import exporting

    monkeypatch.setattr(exporting, "_MOST_BYTES", 100)
    assert main(["--model", "exported_nets:Net", "--input", "2,3,8,8", "--out", "a"]) == 2
    assert "a file of jax.export holds 2 GB" in capfd.readouterr().err


def test_a_program_of_other_axes_is_refused():
    with pytest.raises(InputError, match="share no batch axis"):
        jaxsr.export_stablehlo(nn.Bilinear(2, 2, 1), torch.ones(3, 2), torch.ones(2, 2))


@pytest.mark.slow
def test_onnx_equals_torch(tmp_path, capfd):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    words = ["--model", "exported_nets:Net", "--input", "2,3,8,8", "--format", "onnx"]
    assert main([*words, "--out", "net.onnx"]) == 0
    printed = capfd.readouterr().out
    assert "differs from float64 by at most" in printed and "float32[batch,3,8,8]" in printed
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    logits = session.run(None, {session.get_inputs()[0].name: np.ones((5, 3, 8, 8), np.float32)})
    assert logits[0].shape == (5, 4)
    assert main([*words, "--fixed-batch", "--out", "two.onnx"]) == 0
    assert "float32[2,3,8,8]" in capfd.readouterr().out
    assert main([*words, "--fixed-batch", "--out", "two.onnx"]) == 0  # replaces its own
    torch.onnx.export(nn.Linear(8, 8), (torch.ones(1, 8),), "own.onnx", dynamo=True, verbose=False)
    own = (tmp_path / "own.onnx").read_bytes()
    assert main([*words, "--out", "own.onnx"]) == 2
    assert (tmp_path / "own.onnx").read_bytes() == own
    assert "out=own.onnx is a file that jaxsr did not write; name another" in capfd.readouterr().err


@pytest.mark.slow
def test_what_onnxruntime_refuses_is_one_line(tmp_path, capfd):
    pytest.importorskip("onnxruntime")
    words = ["--model", "exported_nets:Half", "--input", "2,4", "--out"]
    assert main([*words, "half.onnx"]) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line[:6] == "jaxsr:"]
    assert "onnxruntime cannot run the file" in line and "--format stablehlo" in line
    assert not (tmp_path / "half.onnx").exists()


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("a.onnx", {}, "onnx"),
        ("a.ONNX", {}, "onnx"),
        ("a.stablehlo", {}, "stablehlo"),
        ("a.onnx", {"format": "stablehlo"}, "stablehlo"),
    ],
)
def test_the_files_ending_gives_the_format(name, options, expected, tmp_path):
    assert ExportConfig(model="x", out=tmp_path / name, **options).file_format == expected


@pytest.mark.parametrize("platforms", ["cpu", ("gpu",), ()])
def test_platforms_that_jax_lacks_are_refused(platforms):
    """A program for `c`, `p` and `u` was made."""
    with pytest.raises(InputError, match="platforms must be a list of cpu, cuda"):
        jaxsr.export_stablehlo(nn.Linear(2, 2), torch.zeros(1, 2), platforms=platforms)


def test_only_programs_are_replaced(tmp_path):
    for name in ("net.stablehlo", "net.ONNX"):
        (tmp_path / name).touch()
        ExportConfig(model="x", out=tmp_path / name)
    own = jaxsr.export_stablehlo(nn.Linear(2, 2), torch.zeros(1, 2)).serialize()
    others = {
        "photo.jpg": b"pixels",
        "notes.md": b"about StableHLO_v1 and jaxsr.export",
        "own.stablehlo": own,
        "torch.onnx": b"\x08\x0a\x12\x07pytorch\x1a\x012:\x05jaxsr",
        "notes.onnx": b"made by jaxsr from pytorch",
    }
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name} is a file that jaxsr did not write"):
            ExportConfig(model="x", out=tmp_path / name)


def test_a_program_replaces_an_earlier_one(tmp_path):
    words = ["--model", "exported_nets:Total", "--fixed-batch", "--out", "net.stablehlo"]
    assert [main([*words, "--input", size]) for size in ("2,4", "3,4")] == [0, 0]
    (shape,) = export.deserialize((tmp_path / "net.stablehlo").read_bytes()).in_avals
    assert shape.shape == (3, 4)


def test_a_buffer_that_forward_writes_is_refused():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    with pytest.raises(InputError, match="writes the buffer calls in evaluation mode"):
        jaxsr.export_stablehlo(Counts(), torch.zeros(1, 3), fixed_batch=True)


class KeywordInput(nn.Module):
    def forward(self, x, input):
        return x - 2 * input


def test_a_keyword_called_input_is_an_input_of_its_own():
    x, y = torch.ones(2, 3), torch.full((2, 3), 5.0)
    program = jaxsr.export_stablehlo(KeywordInput(), x, kwargs={"input": y}, platforms=["cpu"])
    got = program.call(jnp.asarray(x.numpy()), jnp.asarray(y.numpy()))
    np.testing.assert_array_equal(np.asarray(got), KeywordInput()(x, input=y))


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 5, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[1]


def test_an_output_without_rows_in_its_first_axis_is_refused():
    with pytest.raises(InputError, match=r"shape \(1, 2, 5\) for a batch of 2.*--fixed-batch"):
        jaxsr.export_stablehlo(LastState(), torch.ones(3, 6, 4), platforms=["cpu"])


def test_the_file_runs_where_python_itself_finds_no_jax(tmp_path, monkeypatch):
    venv.create(tmp_path, with_pip=False)  # as with libraries in PYTHONPATH or the user's folder
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    path, x = tmp_path / "f.stablehlo", np.ones(2, np.float32)
    path.write_bytes(export.export(jax.jit(jnp.sin))(x).serialize())
    batch: Any = SimpleNamespace(arrays={"x": x})
    (outputs,) = _run_stablehlo(path, [batch])
    assert isinstance(outputs, dict)
    np.testing.assert_allclose(outputs["output"], torch.sin(torch.ones(2)), rtol=1e-6)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(InputError, match=r"No module named 'jax'.*; install that again"):
        _run_stablehlo(path, [batch])
