"""Hugging Face folders that are broken: one line that names the file or the field."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from jaxsr.errors import InputError
from jaxsr.models.llama.tokenizer import load_tokenizer
from jaxsr.models.load import load_model
from tests.generation.conftest import single_file


def broken(folder, how, tensors):
    if how == "no config":
        (folder / "config.json").unlink()
    elif how == "config not JSON":
        (folder / "config.json").write_text("{")
    elif how == "architecture":
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "resnet"}))
    elif how == "shard":
        next(folder.glob("model-00002*")).unlink()
    elif how == "truncated shard":
        path = next(folder.glob("model-00002*"))
        path.write_bytes(path.read_bytes()[:-10])
    elif how == "no weights":
        for path in folder.glob("model*"):
            path.unlink()
        (folder / "pytorch_model.bin").write_bytes(b"")


@pytest.mark.parametrize("implementation", ["own", "transformers"])
def test_an_adapter_in_a_folder_is_refused(model_folder, tmp_path, implementation):
    """transformers would have peft apply it, which imports the `megatron_core` that it names."""
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "megatron_core": "evil"}')
    with pytest.raises(InputError, match=r"adapter_config\.json is of an adapter, which is not"):
        load_model(folder, kind="language model", implementation=implementation)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("no config", FileNotFoundError, "no config.json in"),
        ("config not JSON", ValueError, "config.json is not JSON"),
        ("architecture", ValueError, "model_type 'resnet' makes no"),
        ("shard", FileNotFoundError, "lacks 1 of"),
        ("truncated shard", ValueError, "not a complete safetensors file"),
        ("no weights", FileNotFoundError, "pickles, which are never opened"),
    ],
)
def test_broken_folders_are_named(how, error, message, model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    broken(folder, how, {})
    with pytest.raises(error, match=message) as caught:
        load_model(folder, kind="language model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("config.json", 1_500_000, "has more than 4,194,304 bytes"),
        ("generation_config.json", 1_500_000, "has more than 4,194,304 bytes"),
        ("model.safetensors.index.json", 2_200_000, "has more than 2,097,152 lists and objects"),
        ("tokenizer_config.json", 2_200_000, "has more than 2,097,152 lists and objects"),
        ("tokenizer.json", 2_200_000, "has more than 2,097,152 lists and objects"),
    ],
)
def test_files_of_millions_of_entries_are_refused(name, entries, message, model_folder, tmp_path):
    """Three bytes take 90 in memory, and more in what is made of them."""
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    text = (folder / name).read_text(encoding="utf-8").rstrip()
    many = ",".join(["{}"] * entries)
    (folder / name).write_text(f'{text[:-1]}, "x": [{many}]}}', encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        load_tokenizer(folder) if name.startswith("tokenizer") else load_model(folder)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", ["garbage"]),
        ("layer_types", 5),
        ("rope_parameters", 5),
        ("rope_parameters", {"rope_type": "garbage"}),
        ("dtype", "garbage"),
        ("quantization_config", [1]),
        ("hidden_act", "zzz"),
        ("vocab_size", [1]),
        ("eos_token_id", "a"),
    ],
)
@pytest.mark.parametrize("whose", ["tokenizer", "model"])
def test_a_wrong_field_is_named_and_not_the_tokenizer(whose, field, value, model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    (folder / "tokenizer_config.json").unlink()  # transformers then asks config.json for the class
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, field: value}))
    with pytest.raises(InputError, match=rf"config\.json has (the )?{field} ") as caught:
        if whose == "tokenizer":
            load_tokenizer(folder)
        load_model(folder, kind="language model", implementation="transformers")
    assert "\n" not in str(caught.value) and "tokenizer" not in str(caught.value)


def test_a_stop_token_of_config_json_is_checked_where_another_file_has_one(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "eos_token_id": -7}))
    with pytest.raises(
        InputError, match=r"config\.json has the eos_token_id -7, which is not a tok"
    ):
        load_model(folder)


def test_wrong_tensors_are_named(model_folder, tmp_path):
    folder, tensors = single_file(model_folder, "llama", tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    for changed, message in (
        ({n: t for n, t in tensors.items() if n != name}, f"lacks {name}"),
        ({**tensors, "model.extra": tensors[name].clone()}, "this network lacks: model.extra"),
        ({**tensors, name: tensors[name][:-1].clone()}, "but the configuration makes it"),
        ({**tensors, name: tensors[name].to(torch.int8)}, "states no quantisation"),
    ):
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(ValueError, match=message):
            load_model(folder)


def test_nothing_at_the_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no model '.*absent'"):
        load_model(tmp_path / "absent")


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (
            {"weight_map": {"a": "../outside.safetensors"}},
            "is not a safetensors file of its folder",
        ),
        ({"weight_map": {"a": "/etc/passwd"}}, "is not a safetensors file of its folder"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, "is not a safetensors file of its folder"),
        ({"weight_map": {"a": ["x"]}}, "is not a safetensors file of its folder"),
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": "model.safetensors"}, "no weight_map"),
        ({}, "no weight_map"),
    ],
)
def test_an_index_names_files_of_its_folder_alone(tmp_path, index, reason):
    from jaxsr.models.llama.hf_folder import weight_files

    (tmp_path / "outside.safetensors").write_bytes(b"")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=reason):
        weight_files(folder)


@pytest.mark.parametrize("implementation", ["own", "transformers"])
@pytest.mark.parametrize("is_second", [True, False])
def test_shards_hold_what_their_index_says(model_folder, tmp_path, implementation, is_second):
    name = "model.embed_tokens.weight"
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    index = folder / "model.safetensors.index.json"
    here = json.loads(index.read_text())["weight_map"][name]
    other = next(path for path in sorted(folder.glob("*.safetensors")) if path.name != here)
    path = other if is_second else folder / here
    weights = load_file(path)
    if is_second:
        weights[name] = -3 * load_file(folder / here)[name]
    else:
        del weights[name]
    save_file(weights, path, metadata={"format": "pt"})
    reason = f"{other.name} has {name}, which is in {here}" if is_second else f"lacks {name}"
    with pytest.raises(ValueError, match=reason):
        load_model(folder, kind="language model", implementation=implementation)


def test_json_that_nests_without_end(tmp_path):
    from jaxsr.models.llama.hf_folder import read_json

    for text in ("[" * 100_000, "1" * 10_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="is not JSON"):
            read_json(tmp_path / "config.json")


@pytest.mark.parametrize("implementation", ["own", "transformers"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(model_folder, tmp_path, implementation, value):
    name = "model.layers.1.mlp.up_proj.weight"
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    for path in folder.glob("*.safetensors"):
        weights = load_file(path)
        if name in weights:
            weights[name][3, 5] = value
            save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj\.weight has NaN or infinity"):
        load_model(folder, kind="language model", implementation=implementation)


@pytest.mark.parametrize("implementation", ["own", "transformers"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", 5),
        ("dtype", "garbage"),
        ("dtype", {"text_config": "load"}),
        ("torch_dtype", "garbage"),
        ("torch_dtype", ["bfloat16"]),
        ("architectures", 5),
        ("architectures", "LlamaForCausalLM"),
        ("architectures", [5]),
        ("architectures", ["../evil"]),
        ("pad_token_id", -7),
        ("pad_token_id", "0"),
        ("pad_token_id", True),
    ],
)
def test_a_field_that_no_family_looks_at_is_checked(
    implementation, field, value, model_folder, tmp_path
):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, field: value}))
    with pytest.raises(InputError, match=field) as caught:
        load_model(folder, kind="language model", implementation=implementation)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_usual_values_of_those_fields_pass(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    fields = json.loads((folder / "config.json").read_text())
    for stated in (
        {"dtype": None, "architectures": None, "pad_token_id": -1},
        {"dtype": "auto", "torch_dtype": "torch.bfloat16", "pad_token_id": 0},
        {"dtype": {"text_config": "float16", "": "half"}, "architectures": ["LlamaForCausalLM"]},
    ):
        (folder / "config.json").write_text(json.dumps(fields | stated))
        load_model(folder, kind="language model", implementation="own")
