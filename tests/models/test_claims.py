"""Headers that claim more than their file holds, in every kind of file that describes a network."""

import json
import shutil
import time

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.errors import InputError
from jaxsr.interop import out_of_memory
from jaxsr.interop.weights import export_weights
from jaxsr.models import build
from jaxsr.models.build import build_network
from jaxsr.models.claims import check_claims
from jaxsr.models.load import load_model


@pytest.mark.parametrize(
    ("notes", "name"),
    [
        ({"family": "span", "config": {"depth": 10**6, "width": 8}}, "depth=1,000,000, more than"),
        ({"family": "span", "config": {"depth": 2, "width": 2**31}}, "width=2,147,483,648, more"),
        ({"builder": "timm:resnet18", "builder_args": {"layers": [10**6]}}, "layers=1,000,000"),
        ({"builder": "timm:resnet18", "builder_args": {"a": {"width": 10**9}}}, "a.width=1,000,0"),
    ],
)
def test_metadata_of_weights(tmp_path, notes, name):
    path = tmp_path / "w.safetensors"
    export_weights(path, {"conv.weight": np.zeros((4, 4), np.float32)}, metadata=notes)
    begin = time.perf_counter()
    with pytest.raises(InputError, match="claims") as error:
        load_model(path)
    assert name in str(error.value) and time.perf_counter() - begin < 5


@pytest.mark.parametrize(
    ("name", "is_count"),
    [
        ("num_hidden_layers", True), ("n_layer", True), ("block_count", True), ("depths", True),
        ("num_layers_in_all", True), ("block_channels", False), ("block_ff_inner", False),
        ("layer_dim", False), ("block_multiple_of", False), ("num_block_features", False),
    ],
)  # fmt: skip
def test_widths_of_blocks_are_no_numbers_of_layers(tmp_path, name, is_count):
    """As `block_ff_dim` of LFM2 and `block_out_channels` of diffusers."""
    claim = {"fields": {name: 4000}, "tensors": 20, "size": 2**20, "source": tmp_path}
    if not is_count:
        check_claims(**claim)
        return
    with pytest.raises(InputError, match=f"claims {name}=4,000, more than its 20 tensors; get it"):
        check_claims(**claim)


def test_lengths_of_runs_are_no_widths(tmp_path):
    """A small network's own run may have more steps than its weights have bytes."""
    claim = {"tensors": 2, "size": 500, "source": tmp_path, "least": 1024}
    check_claims({"steps": 10**7, "validate_every": 10**5, "sample_rate": 48_000}, **claim)
    with pytest.raises(InputError, match="claims width=48,000, more than its 500 bytes hold"):
        check_claims({"width": 48_000}, **claim)


class Sized(nn.Module):
    """Takes memory or time by arguments whose names and kinds say nothing of it."""

    def __init__(self, ratio=1.0, window=2, dims=((2,),), rows=1, steps=1):
        super().__init__()
        self.widen = nn.Linear(8, int(8 * ratio))
        area = torch.arange(window * window)
        self.register_buffer("distances", area[:, None] - area[None], persistent=False)
        self.largest = torch.ones(dims[0][0], 64).double().sum()
        self.rates = [x.item() for x in torch.linspace(0, 1, steps)]
        self.parts = nn.ModuleList(nn.Linear(1, 1) for _ in range(rows))


@pytest.mark.parametrize(
    ("arguments", "resource"),
    [
        ({"ratio": 3e7}, "memory"),
        ({"window": 150}, "memory"),
        ({"dims": [[10**6]]}, "memory"),
        ({"steps": 10**7}, "memory"),
        ({"ratio": 1.5, "rows": 60_000}, "time"),
    ],
)
def test_what_a_builder_computes_is_bounded_by_the_file(tmp_path, monkeypatch, arguments, resource):
    monkeypatch.setitem(build.LIBRARIES, "timm", lambda name, options: Sized(**options))
    # What is computed is bounded by itself, also where no number is too large.
    monkeypatch.setattr("jaxsr.models.own_network.check_claims", lambda *_, **__: None)
    path = tmp_path / "w.safetensors"
    state = {name: value.numpy() for name, value in Sized().state_dict().items()}
    notes = {"builder": "timm:sized", "builder_args": {}}
    export_weights(path, state, metadata=notes)
    assert load_model(path).family == "Sized"
    export_weights(path, state, metadata=notes | {"builder_args": arguments})
    with pytest.raises(InputError, match=f"far more {resource} to build than its .* bytes of"):
        load_model(path)


def test_a_family_is_bounded_by_the_file(tmp_path):
    path = tmp_path / "w.safetensors"
    notes = {"family": "span", "config": {"depth": 64, "width": 1024}}
    export_weights(path, {"conv.weight": np.zeros((4, 4), np.float32)}, metadata=notes)
    with pytest.raises(InputError, match="far more memory to build"):
        load_model(path)


@pytest.mark.parametrize("quantised", [False, True])
def test_tables_of_a_folders_network_are_bounded_by_its_weights(tmp_path, quantised):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoConfig(
        vocab_size=32, hidden_size=16, num_layers=1, num_heads=2, max_position_embeddings=32,
        attention_types=[[["global"], 1]],
    )  # fmt: skip
    transformers.GPTNeoForCausalLM(config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text()) | {"max_position_embeddings": 40_000}
    if quantised:
        fields["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 16}
    path.write_text(json.dumps(fields))
    message = "far more memory to build than" if quantised else "describes .* parameters, but"
    with pytest.raises(InputError, match=message):
        load_model(tmp_path, kind="language model")


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 4000},
        {"num_hidden_layers": 10**9},
        {"hidden_size": 2**31},
        {"vocab_size": 2**40},
        {"head_dim": 2**33},
        {"rope_parameters": {"rope_type": "default", "rope_dim": 2**62}},
    ],
)
@pytest.mark.parametrize("implementation", ["own", "transformers"])
def test_configurations_of_folders(tmp_path, fields, implementation):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "m")
    assert load_model(tmp_path / "m", kind="language model", implementation=implementation)
    content = json.loads((tmp_path / "m" / "config.json").read_text()) | fields
    (tmp_path / "m" / "config.json").write_text(json.dumps(content))
    (name,) = fields
    with pytest.raises(InputError, match=f"config.json claims {name}.*, more than .* get it again"):
        load_model(tmp_path / "m", kind="language model", implementation=implementation)
    shutil.rmtree(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_count", 4000),
        ("embedding_length", 2**31),
        ("rope.dimension_count", 2**31),
        ("attention.head_count", 2**31),
        ("feed_forward_length", 2**31),
    ],
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_headers_of_gguf(tmp_path, family, name, value):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", family)
    fields = {"context_length": 64, "embedding_length": 16, "block_count": 1,
              "feed_forward_length": 16, "attention.head_count": 2}  # fmt: skip
    for key, number in (fields | {name: value}).items():
        writer.add_uint32(f"{family}.{key}", number)
    writer.add_tensor("token_embd.weight", np.zeros((32, 16), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    begin = time.perf_counter()
    with pytest.raises(InputError, match=rf"m\.gguf claims {family}.{name}={value:,}, more than"):
        load_model(tmp_path / "m.gguf")
    assert time.perf_counter() - begin < 5


def test_a_token_that_takes_quadratic_time(tmp_path):
    gguf = pytest.importorskip("gguf")
    from jaxsr.models.llama.tokenizer import load_tokenizer

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["a", "a" * 200_000])
    writer.add_token_scores([0.0, 0.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match="has a text of 200,000 characters, more than 1024"):
        load_tokenizer(tmp_path / "m.gguf")


def test_a_configuration_without_weights(tmp_path):
    pytest.importorskip("transformers")
    fields = {"model_type": "llama", "num_hidden_layers": 10**9, "hidden_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    begin = time.perf_counter()
    with pytest.raises(InputError, match=r"num_hidden_layers=1,000,000,000, more than the 4,096"):
        build_network(str(tmp_path))
    assert time.perf_counter() - begin < 15  # transformers' import


def test_a_network_that_memory_cannot_hold(monkeypatch):
    monkeypatch.setattr(out_of_memory, "free_memory_bytes", lambda: 2**20)
    monkeypatch.setattr(build, "free_memory_bytes", lambda: 2**20)
    options = {"in_features": 512, "out_features": 512}
    with pytest.raises(
        out_of_memory.OutOfMemoryError, match=r"the parameters of --model torch\.nn"
    ):
        build_network("torch.nn:Linear", options | {"bias": True})
    build_network("torch.nn:Linear", options | {"out_features": 8})
