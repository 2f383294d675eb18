"""Runs `jaxsr.check` over the models of timm and transformers, and torch.nn's larger modules.

Each model runs in a process with bounds on time and memory. With `--out`, models whose rows are in
the file already are left out, so that an interrupted run continues.
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks._results import Report, ReportOptions, Row, read_rows, run_benchmark
from jaxsr.errors import InputError

Group = Literal["timm", "transformers", "torch.nn"]

TORCH_NN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "torch.nn:Transformer": ({"d_model": 16, "nhead": 2, "num_encoder_layers": 1,
                              "num_decoder_layers": 1, "dim_feedforward": 32,
                              "batch_first": True}, ("2,5,16", "2,4,16")),
    "torch.nn:TransformerEncoderLayer": ({"d_model": 16, "nhead": 2, "batch_first": True},
                                         ("2,5,16",)),
    "torch.nn:TransformerDecoderLayer": ({"d_model": 16, "nhead": 2, "batch_first": True},
                                         ("2,5,16", "2,4,16")),
    "torch.nn:MultiheadAttention": ({"embed_dim": 16, "num_heads": 2, "batch_first": True},
                                    ("2,5,16", "2,5,16", "2,5,16")),
    "torch.nn:LSTM": ({"input_size": 4, "hidden_size": 6, "num_layers": 2, "bidirectional": True,
                       "batch_first": True}, ("2,7,4",)),
    "torch.nn:GRU": ({"input_size": 4, "hidden_size": 6, "num_layers": 2, "batch_first": True},
                     ("2,7,4",)),
    "torch.nn:RNN": ({"input_size": 4, "hidden_size": 6, "batch_first": True}, ("2,7,4",)),
    "torch.nn:LSTMCell": ({"input_size": 4, "hidden_size": 6}, ("2,4",)),
    "torch.nn:AdaptiveLogSoftmaxWithLoss": ({"in_features": 8, "n_classes": 12, "cutoffs": [4]},
                                            ("6,8", "int64:6:12")),
}  # fmt: skip

SMALL_SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers",
                     "decoder_layers", "depth"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads",
                     "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff",
                     "n_inner", "moe_intermediate_size"), 64),
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 128, "max_position_embeddings": 64,
    "n_positions": 64, "image_size": 32, "patch_size": 8, "num_local_experts": 4,
    "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "d_kv": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Of tiny transformers, wherever a configuration has such a whole number."""


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    group: Group | None = None
    """Run only one library. Default: all that can be imported."""
    only: str = ""
    """Run only models whose name contains this."""
    shard: str = "1/1"
    """Part of the models to run: 2/4 is the second of four."""
    timeout_s: int = 300
    """Of one model."""
    memory_gib: int = 24
    """Address space of one model's process."""


@dataclass(frozen=True)
class Entry:
    """A model of the zoo, and how the command is called for it."""

    group: Group
    name: str
    arguments: tuple[str, ...]


def entries(folder: Path, group: Group | None) -> Iterator[Entry]:
    """Models of the libraries that can be imported; configurations are written to `folder`."""
    if group in (None, "torch.nn"):
        for name, (args, inputs) in TORCH_NN.items():
            words = (name, "--args", json.dumps(args), "--input", *inputs)
            yield Entry("torch.nn", name, words)
    if group in (None, "timm"):
        yield from _timm()
    if group in (None, "transformers"):
        yield from _transformers(folder)


def _timm() -> Iterator[Entry]:
    try:
        import timm  # type: ignore[import-not-found]
    except Exception as error:
        print(f"timm is left out: {type(error).__name__}: {error}")
        return
    for family in timm.list_modules():
        names = timm.list_models(module=family)
        if names:
            yield Entry("timm", f"timm:{_smallest(names)}", (f"timm:{_smallest(names)}",))


def _smallest(names: list[str]) -> str:
    """By what names say of sizes; counting parameters would build them all."""
    words = ("test_", "atto", "femto", "pico", "nano", "tiny", "small", "_s", "_xs", "_0", "18")
    ranks = [
        next((i for i, word in enumerate(words) if word in name), len(words)) for name in names
    ]
    return names[ranks.index(min(ranks))]


def _transformers(folder: Path) -> Iterator[Entry]:
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
    except Exception as error:
        print(f"transformers is left out: {type(error).__name__}: {error}")
        return
    for model_type in sorted(set(MODEL_MAPPING_NAMES) & set(CONFIG_MAPPING.keys())):
        try:
            config = _reduced(CONFIG_MAPPING[model_type]().to_dict())
            path = folder / model_type / "config.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({**config, "model_type": model_type}, default=str))
        except Exception as error:  # a configuration without defaults
            print(f"transformers:{model_type} has no tiny configuration: {error}"[:160])
            continue
        yield Entry("transformers", f"transformers:{model_type}", (str(path),))


def _reduced(config: dict[str, Any]) -> dict[str, Any]:
    def one(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _reduced(value)
        is_size = isinstance(value, int) and not isinstance(value, bool)
        return min(value, SMALL_SIZES[name]) if is_size and name in SMALL_SIZES else value

    return {name: one(name, value) for name, value in config.items()}


def run_entry(entry: Entry, options: Options) -> Row:
    """One model in a process of its own."""
    command = [sys.executable, "-m", "jaxsr.check", *entry.arguments, "--json", "--platform", "cpu"]
    size = options.memory_gib * 2**30
    row: Row = {"model": entry.name, "group": entry.group}
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=options.timeout_s,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_AS, (size, size)),
        )
    except subprocess.TimeoutExpired:
        return row | {"status": "timeout", "reason": f"more than {options.timeout_s} s"}
    try:
        result = json.loads(process.stdout)
    except ValueError:
        last = (process.stderr.strip().splitlines() or [f"status {process.returncode}"])[-1]
        status = "not built" if process.returncode == 2 else "failed"
        return row | {"status": status, "reason": last[:300]}
    checks = {one["name"]: one["status"] for one in result["rows"]}
    return row | {
        "status": result["status"],
        "reason": result["reason"][:300],
        "parameters": result["parameters"],
        "referee": result["referee"],
        "checks": checks,
        "forward_error": _worst(result, "forward"),
        "gradient_error": _worst(result, "gradient"),
        "compile_s": sum(one["compile_s"] for one in result["speeds"]),
    }


def _worst(result: dict[str, Any], name: str) -> float | str | None:
    arrays = [a for row in result["rows"] if row["name"] == name for a in row["arrays"]]
    return max((a["error"] for a in arrays), key=float, default=None)


def measure(options: Options) -> None:
    """Runs the models one after another, and counts their statuses."""
    part, _, parts = options.shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise InputError(f"shard must be such as 2/4, got {options.shard!r}")
    done = {row["model"] for row in read_rows(options.out)}
    report = Report("zoo", options, key=("model",))
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        listed = [e for e in entries(Path(folder), options.group) if options.only in e.name]
        for entry in listed[int(part) - 1 :: int(parts)]:
            if entry.name in done:
                continue
            row = run_entry(entry, options)
            report.add(row)
            counts.setdefault(entry.group, Counter())[row["status"]] += 1
            print(f"{row['status']:10} {entry.name}  {row['reason']}"[:180], flush=True)
    for group, statuses in counts.items():
        listed_counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
        print(f"{group}: {listed_counts}")


if __name__ == "__main__":
    run_benchmark(measure, Options)
