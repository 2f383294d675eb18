"""Files of strangers: weights that name code, odd tensors, tokenizers, rows of a run."""

import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 1e308, -0.5, "", "x" * 5000, "../../etc/passwd", "\x1b[2J\n",
    "os:system", "{{ 'a' * 10**9 }}", "(a+)+$", [], {}, [[[]]], {"a": {"b": []}}, ["a", 1, None],
    "\ud800", "²",
)  # fmt: skip
"""Values in the place of others."""


def hostile_json(value: Any) -> Iterator[Any]:
    """The value with each of its parts, in turn, replaced by something else or left out."""
    for index, path in enumerate(_paths(value)):
        changed = json.loads(json.dumps(value))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        if index % 5 == 4:
            del inner[path[-1]]
        else:
            inner[path[-1]] = _HOSTILE[(7 * index + len(path)) % len(_HOSTILE)]
        yield changed


def _paths(value: Any, path: tuple = ()) -> Iterator[tuple]:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts if isinstance(value, dict | list) else ():
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from _paths(part, (*path, key))


def builders() -> dict[str, bytes]:
    """Weights files whose metadata name what builds their network."""
    import torch
    from safetensors.torch import save

    weights = {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}
    sound = {
        "builder": "timm:resnet10t", "builder_args": {"in_chans": 3, "checkpoint_path": "a.pth"},
        "task": "detection", "channels": 3, "value_range": [0.0, 1.0], "multiple": 4,
        "input": {"evaluate": "whole", "base": 256}, "step": 3, "family": "span",
        "config": {"width": 16, "depth": 2, "scale": 4, "channels": 3},
    }  # fmt: skip
    names = ("os:system", "torch.hub:load", "builtins:eval", "runs.x.evil:Net", "timm:", ":", "a:b")
    described = [*hostile_json(sound), *({**sound, "builder": name} for name in names)]
    return {
        f"{number}.safetensors": save(weights, {n: json.dumps(v) for n, v in each.items()})
        for number, each in enumerate(described)
    }


def tensors() -> dict[str, bytes]:
    """Files of torch whose tensors a network cannot take."""
    import torch

    eye = torch.eye(4)
    loop: dict[str, Any] = {"a": eye}
    loop["state_dict"] = loop
    trees = {
        "plain": {"model": {"weight": eye}},
        "complex": {"weight": torch.complex(eye, eye)},
        "large": {"weight": torch.full((4, 4), 1e200, dtype=torch.float64)},
        "sparse": {"weight": eye.to_sparse()},
        "float8": {"weight": eye.to(torch.float8_e4m3fn)},
        "meta": {"weight": torch.empty(4, 4, device="meta")},
        "nan": {"weight": eye * float("nan")},
        "loop": loop,
        "words": {"weight": "4", "bias": [1, 2], "step": {"a": {"b": None}}},
        "empty": {},
        "deep": {"state_dict": {"model": {"state_dict": {"weight": eye}}}},
    }
    made = {}
    for name, tree in trees.items():
        out = io.BytesIO()
        torch.save(tree, out)
        made[f"{name}.pth"] = out.getvalue()
    return made


def tokenizers() -> dict[str, bytes]:
    """`tokenizer.json` and `tokenizer_config.json`, with chat templates."""
    import tokenizers as library
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    vocabulary = {"<s>": 0, "a": 1, "b": 2, "ab": 3}
    inner = library.Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="<s>"))
    inner.normalizer = normalizers.Replace("c", "a")  # pyright: ignore[reportAttributeAccessIssue]
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace()])  # pyright: ignore[reportAttributeAccessIssue]
    inner.decoder = decoders.Sequence([decoders.Replace("a", "b")])  # pyright: ignore[reportAttributeAccessIssue]
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "<s>"}}
    templates = (
        "{% for a in range(10**9) %}{% endfor %}", "{{ 'a' * 10**10 }}", "{{ ''.__class__ }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ messages[10**6].content }}", "{%",
        "{{ raise_exception('no') }}", "{{ cycler.__init__.__globals__.os.system('true') }}",
    )  # fmt: skip
    made = {"tokenizer.json": json.loads(inner.to_str())}
    for number, each in enumerate(hostile_json(made["tokenizer.json"])):
        made[f"{number}-tokenizer.json"] = each
    configs = [*hostile_json(config), *({**config, "chat_template": t} for t in templates)]
    made |= {f"{number}-tokenizer_config.json": each for number, each in enumerate(configs)}
    return {name: json.dumps(value).encode() for name, value in made.items()}


def rows() -> dict[str, bytes]:
    """Rows of `generate --out`, which a run goes on with."""
    from jaxsr.interop.sealed_json import seal

    row = {"index": 0, "prompt": "a", "temperature": 0.5, "run": "abc", "output": "b", "ids": [1]}
    texts = [seal(row), seal({**row, "index": 1}), *map(seal, hostile_json(row))]
    return {
        "two.jsonl": f"{texts[0]}\n{texts[1]}\n".encode(),
        "cut.jsonl": f"{texts[0]}\n{texts[1][:20]}".encode(),
        "notes.jsonl": b"a text of somebody's own",
        **{f"{n}.jsonl": f"{text}\n".encode() for n, text in enumerate(texts)},
    }


def run_folders() -> dict[str, bytes]:
    """`config.json` of runs, whose options are of other types."""
    from jaxsr.training.config_file import to_json
    from jaxsr.training.find_task import find_task

    made = {}
    for task in ("span", "mshnet"):
        run = to_json(task, find_task(task).presets["quick"])
        for number, each in enumerate((run, *hostile_json(run))):
            made[f"{task}-{number}.json"] = json.dumps(each).encode()
    return made


def read_run_folder(path: Path) -> None:
    """As `train --config` does."""
    from jaxsr.training.config_file import read_config
    from jaxsr.training.find_task import find_task

    file = read_config(path)
    file.run_config(find_task(file.family).Config)


def read_builder_file(path: Path) -> None:
    """As `restore`, `detect` and `train --init` do, also where the user trusts it."""
    from jaxsr.models.load import load_model

    for trusted in (True, False):
        load_model(path, trust_builder=trusted)


def read_tensors_file(path: Path) -> None:
    """As weights of a network that has `weight` alone."""
    import torch
    from torch import nn

    from jaxsr.models.weight_files import load_weights, read_weights

    network = nn.Linear(4, 4, bias=False)
    load_weights(network, read_weights(path), source=str(path))
    assert torch.isfinite(network.weight).all()


def read_tokenizer_file(path: Path) -> None:
    """As the tokenizer of a model folder, which encodes, decodes and fills its template."""
    from jaxsr.models.llama.tokenizer import load_tokenizer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer.json").write_bytes(_sound_tokenizer())
        (folder / path.name.rpartition("-")[2]).write_bytes(path.read_bytes())
        tokenizer = load_tokenizer(folder)
        tokenizer.decode(tokenizer.encode("ab cab", raw=True))
        if tokenizer.template is not None:
            tokenizer.chat([{"role": "user", "content": "a"}])


def _sound_tokenizer() -> bytes:
    import tokenizers as library

    vocabulary = {"<s>": 0, "a": 1, "b": 2}
    return library.Tokenizer(library.models.BPE(vocabulary, [], unk_token="<s>")).to_str().encode()


def read_row_file(path: Path) -> None:
    """As a run that goes on, which must keep what it read, and no file of another kind."""
    from jaxsr.generation.row_file import RowFile

    before = path.read_bytes()
    try:
        file = RowFile(path, {"temperature": 0.5, "run": "abc"})
        file.check([{"index": index, "prompt": "a"} for index in range(2)])
        assert all(np.isfinite(row["temperature"]) for row in file.rows)
        file.close()
    except BaseException:
        assert path.read_bytes() == before, "a refused file was changed"
        raise
