"""Folders of models that bring Python code: it is never run, and nothing is asked."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from jaxsr import check, generate
from jaxsr.errors import InputError
from jaxsr.models.build import build_network
from jaxsr.models.load import load_model
from jaxsr.models.transformers_files import check_config, config_of

ROOT = Path(__file__).parents[2]
CODE = """
import pathlib
pathlib.Path({mark!r}).touch()
from transformers import LlamaConfig as Configuration, LlamaForCausalLM as Network
from transformers import PreTrainedTokenizerFast as Words
"""


@pytest.fixture
def folder(model_folder, tmp_path, monkeypatch):
    """A folder with code, a mark that the code sets, and a person who answers y."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("something was asked"))
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    (folder / "evil.py").write_text(CODE.format(mark=str(tmp_path / "ran")))
    return folder


def _edit(path, **fields):
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | fields))


def test_every_call_that_may_run_code_forbids_it():
    calls = re.compile(r"\.(?:from_pretrained|from_config)\(")
    for top in ("jaxsr", "interop", "benchmarks", "examples"):
        for path in sorted((ROOT / top).rglob("*.py")):
            text = path.read_text()
            for call in calls.finditer(text):
                end = text.index(")", call.end())
                while text.count("(", call.end(), end) > text.count(")", call.end(), end):
                    end = text.index(")", end + 1)
                assert "trust_remote_code=False" in text[call.end() : end], f"{path}: {call[0]}"


def _refused(capsys, *words):
    assert generate.main(["hi", "--platform", "cpu", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    return line


def test_code_of_a_configuration_and_model(folder, tmp_path, capsys):
    names = {"AutoConfig": "evil.Configuration", "AutoModelForCausalLM": "evil.Network"}
    _edit(folder / "config.json", model_type="strange", auto_map=names)
    line = _refused(capsys, "--model", folder)
    assert "config.json needs code of its own (auto_map: " in line and "never run" in line
    assert check.main(["--model", str(folder)]) == 2
    assert "never run" in capsys.readouterr().err
    with pytest.raises(InputError, match="never run"):
        build_network(str(folder))
    assert not (tmp_path / "ran").exists() and "evil" not in sys.modules


def test_families_of_transformers_that_bring_code_too_are_computed_without_it(folder, tmp_path):
    names = {"AutoConfig": "evil.Configuration", "AutoModelForCausalLM": "other/repo--evil.Network"}
    _edit(folder / "config.json", auto_map=names, _name_or_path=str(folder),
          _attn_implementation="someone/kernels")  # fmt: skip
    loaded = load_model(folder, kind="language model", implementation="transformers")
    assert type(loaded.network.inner).__name__ == "LlamaForCausalLM"
    build_network(str(folder))
    assert not (tmp_path / "ran").exists()


def test_code_of_inner_configurations_is_left_out(folder, tmp_path):
    inner = {"model_type": "align_text_model", "auto_map": {"AutoModel": "evil.Network"}}
    fields = {"model_type": "llava", "vision_config": inner, "text_config": {"model_type": "llama"}}
    config = config_of(fields)
    assert not hasattr(config.vision_config, "auto_map")
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(InputError):  # transformers has no model of that kind
        build_network(str(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "timm_wrapper", "architecture": "hf-hub:evil/net"},
        {"model_type": "timm_backbone", "backbone": "local-dir:here"},
        {"model_type": "x", "parts": [{"architecture": "timm/../x"}]},
    ],
)
def test_timm_fetches_no_network_that_a_configuration_names(fields):
    with pytest.raises(InputError, match="more than a network's name"):
        config_of(fields)


@pytest.mark.parametrize("kind", ["detr", "dpt", "upernet", "vitmatte", "maskformer"])
def test_a_backbone_that_a_configuration_names_is_not_looked_up(kind, tmp_path, monkeypatch):
    (tmp_path / "bb").mkdir()
    (tmp_path / "bb" / "config.json").write_text('{"model_type": "resnet"}')
    monkeypatch.chdir(tmp_path)
    for name in ("bb", "resnet18"):
        fields = {"model_type": kind, "backbone": name, "use_timm_backbone": False}
        with pytest.raises(InputError, match=r"names a backbone .* into backbone_config"):
            check_config(fields)


def test_code_of_a_tokenizer(folder, tmp_path, capsys):
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").write_text("")
    for auto_map in ({"AutoTokenizer": ["evil.Words", None]}, ["evil.Words", None]):
        _edit(folder / "tokenizer_config.json", auto_map=auto_map, tokenizer_class="Words")
        line = _refused(capsys, "--model", folder)
        assert "tokenizer_config.json needs code of its own (auto_map: " in line
    assert not (tmp_path / "ran").exists()


def test_a_configuration_names_networks_only(folder):
    _edit(folder / "config.json", architectures=["pipeline"])
    assert type(build_network(str(folder))).__name__ == "LlamaModel"
