"""Published language models compiled for TPU slices: what fits, what is sent, tokens a second.

Shapes alone: no weights are needed, nothing is measured. A batch's prompts are prefilled and
continued by a token with all of its context in the cache. The table of docs/generate.md is
`--table`; beside it stand figures that others have measured.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.report import RESULTS, Report, ReportOptions, Row, read_rows, run_benchmark

RECORD = RESULTS / "aot_language_models.json"
BATCH, PROMPT, CONTEXT = 16, 1024, 4096
MODELS: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    },
    "Qwen2.5-7B": {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 152064,
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
    },
    "Gemma-3-12B": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 262208, "hidden_size": 3840, "intermediate_size": 15360,
        "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "max_position_embeddings": 131072, "sliding_window": 1024,
        "query_pre_attn_scalar": 256,
    },
    "Mixtral-8x7B": {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 32000,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8,
        "num_experts_per_tok": 2, "tie_word_embeddings": False,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "norm_topk_prob": True, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Values of their published configurations."""
SLICES = {
    "Llama-3.1-8B": ("v5e:2x4", "v6e:1x1"),
    "Qwen2.5-7B": ("v5e:2x2", "v6e:1x1"),
    "Gemma-3-12B": ("v5e:2x4", "v6e:2x2"),
    "Mixtral-8x7B": ("v5e:4x4", "v6e:2x4"),
    "Qwen3-30B-A3B": ("v5e:4x4", "v6e:2x4"),
}


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run, which compiles the programs that `out` does not have."""

    only: str = ""
    """Programs whose name contains this, such as `Llama-3.1-8B v6e:1x1`."""
    table: bool = False
    """Print the results as a table of Markdown and compile nothing."""
    out: Path | None = RECORD
    """JSON of the results."""


def compile_model(name: str, topology_name: str) -> list[Any]:
    """Prefill and decode of one model, split over all chips."""
    import torch

    from jaxsr.generation.ahead_engine import AheadEngine
    from jaxsr.generation.options import SamplingOptions
    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.models.hugging_face.loading import shapes_of

    network = shapes_of(MODELS[name], dtype=torch.bfloat16)
    engine = AheadEngine(network, load_topology(topology_name))
    return [*engine.compile(SamplingOptions(), batch=BATCH, prompt=PROMPT, slots=CONTEXT)]


def measure(options: Options) -> None:
    """Compiles what is not in the results yet."""
    if options.table:
        print("\n".join(table(read_rows(options.out))))
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jaxsr.interop.aot.report import as_json

    done = {(row["model"], row["topology"]) for row in read_rows(options.out)}
    report = Report("aot_language_models", options, key=("model", "topology", "program"))
    for model, slices in SLICES.items():
        for topology in slices:
            if options.only not in f"{model} {topology}" or (model, topology) in done:
                continue
            for ahead in compile_model(model, topology):
                program = ahead.name.partition(" ")[0]
                report.add({"model": model, "program": program, **as_json(ahead)})
                outcome = ahead.error or f"compiled in {ahead.compile_s:.0f} s"
                print(f"{model} {topology} {program}: {outcome}", flush=True)


def table(rows: list[Row]) -> list[str]:
    """A line of Markdown for each model and slice."""
    programs = {(row["model"], row["topology"], row["program"]): row for row in rows}
    lines = [
        f"| model, {BATCH} rows of {CONTEXT} tokens | slice | memory of a chip | read for a token "
        "| sent for a token | tokens a second | prefill, tokens a second |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, topology in dict.fromkeys((row["model"], row["topology"]) for row in rows):
        prefill, decode = (programs[model, topology, p] for p in ("prefill", "decode"))
        if error := prefill.get("error") or decode.get("error"):
            lines.append(f"| {model} | {topology} | {error} | | | | |")
            continue
        share = max(row["memory_share"] for row in (prefill, decode))
        sent = sum(kind["bytes"] for kind in decode["collectives"].values())
        speeds = (
            tokens / row["estimate"]["seconds"]
            for tokens, row in ((BATCH, decode), (BATCH * PROMPT, prefill))
        )
        lines.append(
            f"| {model} | {topology} | {share:.0%} | {decode['bytes_per_device'] / 2**30:.2f} GiB "
            f"| {sent / 1e6:.1f} MB | {' | '.join(f'{speed:,.0f}' for speed in speeds)} |"
        )
    return lines


if __name__ == "__main__":
    run_benchmark(measure, Options)
