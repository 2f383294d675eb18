"""Options that commands share: their checks, and one default everywhere."""

import dataclasses
import inspect
import json
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxsr.comparison.check_options import CheckConfig
from jaxsr.comparison.export_options import ExportConfig
from jaxsr.comparison.ops_options import OpsOptions
from jaxsr.detection.config import DetectConfig, EvaluateConfig
from jaxsr.errors import InputError
from jaxsr.generation.cache_file import FORMAT
from jaxsr.generation.config import GenerateConfig
from jaxsr.interop.train.step import StepConfig
from jaxsr.interop.weights import export_weights
from jaxsr.restoration.config import RestoreConfig
from jaxsr.runtime.options import AotOptions, ComputeOptions, LaneFoldingOptions
from jaxsr.training.config import RunConfig
from jaxsr.training.task_config import TaskConfig

CONFIGS = (DetectConfig, EvaluateConfig, GenerateConfig, RestoreConfig, RunConfig)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "tensorflow"}, "engine must be one of jax, torch, got 'tensorflow'"),
        ({"platform": "npu"}, "platform must be one of auto, tpu, cuda, cpu, got 'npu'"),
        ({"dtype": "float64"}, "dtype must be one of float32, bfloat16, got 'float64'"),
        ({"matmul_precision": "low"}, "matmul_precision must be one of default, high, highest"),
        ({"mesh": "0"}, "mesh axis data must be at least 1, got 0"),
        ({"mesh": "2x4"}, "mesh '2x4' is neither a number of devices"),
        ({"engine": "torch", "mesh": "2"}, "runs on one device, got mesh=2; .* --engine jax"),
        ({"engine": "torch", "platform": "tpu"}, "runs on cuda or cpu, got platform='tpu'"),
    ],
)
def test_what_cannot_be_is_refused(options: Any, message):
    with pytest.raises(InputError, match=message):
        ComputeOptions(**options)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (OpsOptions, {"dtypes": ("uint8", "int4")}, "dtypes must be one of uint8, .*, got 'int4'"),
        (OpsOptions, {"size": (0, 4)}, "size must be at least 1, got 0"),
        (TaskConfig, {"batch": 0}, "batch must be at least 1, got 0"),  # another default there
    ],
)
def test_each_of_several_values_and_inherited_bounds_are_checked(config, options, message):
    with pytest.raises(InputError, match=message):
        config(**options)


def test_a_mesh_is_a_number_or_axes():
    assert ComputeOptions(mesh="4").devices == 4
    assert ComputeOptions(mesh="data=2,fsdp=3").devices == 6


def test_lane_folding_and_aot_are_checked():
    bad: Any = "maybe"
    with pytest.raises(InputError, match="lane_folding must be one of auto, on, off"):
        LaneFoldingOptions(lane_folding=bad)
    with pytest.raises(InputError, match="aot_largest needs aot"):
        AotOptions(aot_largest=True)


@pytest.mark.parametrize("config", CONFIGS)
def test_shared_options_have_one_declaration(config):
    """No command declares a shared option again, so its default and its help exist once."""
    shared = {field.name for field in dataclasses.fields(AotOptions)} | {"lane_folding"}
    for parent in config.__mro__:
        if parent not in (ComputeOptions, AotOptions, LaneFoldingOptions, StepConfig):
            assert not shared & set(inspect.get_annotations(parent)), parent
    assert issubclass(config, ComputeOptions)
    assert {f.name: f.default for f in dataclasses.fields(config)}["matmul_precision"] == "default"


def test_numbers_beyond_reason_are_refused(capsys):
    """Numbers that a user can type; the sizes that networks are built of are among them."""
    from jaxsr import compare, detect, generate, restore, train

    big = "9" * 20
    commands = [
        (train, ["span", "--epochs", "1e308"], "epochs must be at most 1,000,000"),
        (train, ["span", "--warmup-steps", big], "warmup_steps must be at most 2,147,483,647"),
        (train, ["span", "--batch", "1000000000"], "batch must be at most 1,048,576"),
        (train, ["span", "--crop", "1000000"], "crop must be at most 16,384"),
        (train, ["span", "--low-again", "-0.1"], "low_again must be at least 0, got -0.1"),
        (train, ["mshnet", "--zoom", "0.5"], "zoom must be at least 1, got 0.5"),
        (train, ["mshnet", "--zoom", "inf"], "zoom must be finite, got inf"),
        (train, ["mshnet", "--augment", "scale", "--zoom", "2"], "zoom=2 goes with augment=patch"),
        (train, ["span", "--model.width", "1000000"], "width must be at most 4,096"),
        (train, ["mshnet", "--model.widths", "8", "10000000"], "widths must be at most 4,096"),
        (train, ["mshnet", "--scenes", "1000000000"], "scenes must be at most 1,048,576"),
        (generate, ["x", "--model", "m", "--top-k", big], "top_k must be at most 2,147,483,647"),
        (generate, ["x", "--model", "m", "--num-beams", "100000"], "num_beams must be at most 1,0"),
        (generate, ["x", "--model", "m", "--batch-size", "1", big], "batch_size must be at most"),
        (restore, ["a.png", "--tile", big], "tile must be at most 65,536"),
        (detect, ["a.png", "--model", "m", "--out", "o", "--base", big], "base must be at most"),
        (compare, ["engines", "--model", "span", "--size", big], "size must be at most 16,384"),
    ]
    for command, words, message in commands:
        assert command.main(words) == 2, words
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert message in line, line


@pytest.mark.parametrize("config", CONFIGS)
def test_every_number_has_bounds(config):
    fields = {field.name: field for field in dataclasses.fields(config)}
    given = {"model": "m", "out": Path("o"), "data": Path("d"), "batch": 1, "steps": 1}
    given = {name: value for name, value in given.items() if name in fields}
    if fields.get("model") is not None and fields["model"].type is Path:
        given["model"] = Path("m")
    for name, field in fields.items():
        kinds = {field.type, *typing.get_args(field.type)}
        if {int, float} & kinds and isinstance(field.default, int | float):
            with pytest.raises(InputError, match=f"{name} "):
                config(**given | {name: 10**30 if int in kinds else 1e300})


def test_an_output_replaces_nothing_that_the_command_reads(tmp_path):
    folder, prompts = tmp_path / "model", tmp_path / "prompts.csv"
    folder.mkdir()
    weights = folder / "model.safetensors"
    link = tmp_path / "link.csv"
    for path in (weights, folder / "config.json", folder / "notes.json", prompts):
        path.write_text("x")
    link.symlink_to(prompts)
    generate: dict[str, Any] = {"model": folder, "prompts": prompts}
    out, cache = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl"
    for kind, options in (
        (GenerateConfig, {**generate, "out": prompts}),
        (GenerateConfig, {**generate, "out": link}),
        (GenerateConfig, {**generate, "save_cache": weights}),
        (GenerateConfig, {**generate, "aot": "v5e:2x2", "aot_json": folder / "config.json"}),
        (GenerateConfig, {**generate, "out": out, "save_cache": cache}),
        (ExportConfig, {"model": str(weights), "out": weights}),
        (CheckConfig, {"model": str(weights), "html": weights}),
    ):
        with pytest.raises(InputError, match=r"would replace a file of \w+; name another"):
            kind(**options)
    others = ({"aot": "v5e:2x2", "aot_json": folder / "notes.json"}, {"save_cache": prompts})
    for options in others:
        with pytest.raises(InputError, match="is a file that jaxsr did not write; name another"):
            GenerateConfig(model=folder, resume=prompts, **options)
    for kind, option in ((CheckConfig, "html"), (ExportConfig, "out")):
        with pytest.raises(InputError, match="is a file that jaxsr did not write; name another"):
            kind(model=str(weights), **{option: prompts})
    notes = json.dumps({"programs": [{"name": "step", "topology": "v5e:2x2"}]}, indent=2)
    (folder / "notes.json").write_text(notes)
    GenerateConfig(**generate, out=out, aot="v5e:2x2", aot_json=folder / "notes.json")
    export_weights(prompts, {"done": np.zeros(1)}, metadata={"prompts": ["a"], "format": FORMAT})
    GenerateConfig(model=folder, resume=prompts, save_cache=prompts)
    RestoreConfig(inputs=(str(tmp_path),), out=tmp_path)


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("save_cache", "notes on jaxsr-kv-cache"),
        ("save_cache", f'12345678{{"__metadata__":{{"a":"\\"format\\":\\"{FORMAT}\\""}}}}'),
        ("html", '<!doctype html>\n<html>\n<head>\n<meta name="x" content="jaxsr">'),
        ("html", '<p>pages begin with <meta name="generator" content="jaxsr">'),
        ("aot_json", '{"programs": ["mine"]}'),
        ("aot_json", json.dumps({"programs": [{"name": "mine"}]}, indent=2)),
    ],
)
def test_what_only_mentions_a_mark_is_not_replaced(option, content, tmp_path):
    path = tmp_path / "mine"
    path.write_text(content)
    kind: Any = CheckConfig if option == "html" else GenerateConfig
    others: dict[str, Any] = {"aot": "v5e:2x2"} if option == "aot_json" else {}
    with pytest.raises(InputError, match=f"{option}=.*mine is a file that jaxsr did not write"):
        kind(model="m", **others | {option: path})
