"""Parts of `benchmarks.gpu` that measure: rates of the device, steps, restoring, decoding, kernels.

They run alone, one after another. On a CPU and with `quick` sizes they show that they run, not how
fast anything is.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

from benchmarks.gpu.parts import WITHOUT_DEVICE, Setting, start_jax
from benchmarks.harness.gpu_kernels import kernel_times
from benchmarks.harness.llamas import LLAMAS
from benchmarks.harness.report import Row
from benchmarks.harness.turns import time_calls
from jaxsr.errors import one_line

LLAMA_1B = {
    **LLAMAS["1B"], "head_dim": 64, "max_position_embeddings": 4096, "rope_theta": 500000.0,
}  # fmt: skip
LLAMA_TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
PROMPT_TOKENS, NEW_TOKENS = 128, 64


def rates(setting: Setting) -> Iterator[Row]:
    """Rates that the device reaches: bytes of a plain copy, FLOPs of large products."""
    start_jax(setting)
    import jax
    import jax.numpy as jnp

    from benchmarks.ops.races import copy_bandwidth

    size = 1 << (22 if setting.quick else 28)
    yield {"name": "copy, JAX", "gb_per_s": round(copy_bandwidth(size), 1)}
    side = 512 if setting.quick else 8192
    for dtype, precision in (
        ("bfloat16", "default"),
        ("float32", "default"),
        ("float32", "highest"),
    ):
        keys = jax.random.split(jax.random.key(0))
        a, b = (jax.random.normal(key, (side, side), jnp.dtype(dtype)) for key in keys)
        product = jax.jit(lambda a, b, p=precision: jnp.matmul(a, b, precision=p))
        call = {"product": lambda a=a, b=b, f=product: f(a, b).block_until_ready()}
        timing = time_calls(call, rounds=5)["product"]
        yield {
            "name": f"product {side}³ {dtype} {precision}, JAX",
            "tflops": round(2e-9 * side**3 / timing.median_ms, 2),
        }
    import torch

    device = setting.device
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))

    def product() -> None:
        torch.matmul(a, b)
        if device == "cuda":
            torch.cuda.synchronize()

    timing = time_calls({"product": product}, rounds=5)["product"]
    yield {
        "name": f"product {side}³ bfloat16, torch",
        "tflops": round(2e-9 * side**3 / timing.median_ms, 2),
    }


Network = Literal["fast-srgan", "mshnet"]


def race_of(network: Network, setting: Setting) -> tuple[Any, Any]:
    """Options and workload of a race of training steps."""
    from benchmarks.steps import mshnet_step, train_step
    from benchmarks.steps.race_steps import COMPILED_LAST, MAX_AUTOTUNE

    common: dict[str, Any] = {
        "platform": setting.device,
        "dtype": "bfloat16",
        "cold_start": False,
        "longest_start_s": 300.0,
        "rounds": 2 if setting.quick else 5,
        "steps": 1 if setting.quick else 20,
        "contenders": (
            ("jaxsr", "torch eager")
            if setting.quick
            else ("jaxsr", "torch channels_last", COMPILED_LAST, MAX_AUTOTUNE)
        ),
    }
    if network == "fast-srgan":
        common |= {"width": 8, "depth": 1, "batch": 2} if setting.quick else {"batch": 64}
        return train_step.Options(**common), train_step.workload
    # Tuning MSHNet's 150 convolutions takes torch longer than the part's time.
    common["contenders"] = tuple(name for name in common["contenders"] if name != MAX_AUTOTUNE)
    common |= {"crop": 64, "batch": 2} if setting.quick else {"batch": 16}
    return mshnet_step.Options(**common), mshnet_step.workload


def steps(network: Network, setting: Setting) -> Iterator[Row]:
    """Training steps in bfloat16, against torch eager and compiled."""
    from benchmarks.steps.race_steps import race_rows

    options, workload = race_of(network, setting)
    for row in race_rows(options, workload):
        yield {"name": f"{network}, {row['contender']}", **row, "ok": "error" not in row}


def forecasts(setting: Setting) -> Iterator[Row]:
    """The same programs compiled without the device: their memory and their FLOPs."""
    os.environ |= WITHOUT_DEVICE
    from benchmarks.steps.race_steps import compile_step

    for network in ("fast-srgan",) if setting.quick else ("fast-srgan", "mshnet"):
        if f"{network} step" not in setting.done:
            ahead = compile_step(*race_of(network, setting), setting.target)
            yield _forecast(f"{network} step", ahead)
    if {"prefill", "decode"} <= setting.done:
        return
    import torch

    from jaxsr.generation.ahead_engine import AheadEngine
    from jaxsr.generation.options import SamplingOptions
    from jaxsr.generation.padding import cache_slots
    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.models.llama.loading import shapes_of

    config = _language_model(setting)
    engine = AheadEngine(shapes_of(config, dtype=torch.bfloat16), load_topology(setting.target))
    slots = cache_slots(PROMPT_TOKENS, NEW_TOKENS, context=config.max_position_embeddings)
    pair = engine.compile(SamplingOptions(), batch=1, prompt=PROMPT_TOKENS, slots=slots)
    for name, ahead in zip(("prefill", "decode"), pair, strict=True):
        yield _forecast(name, ahead)


def _forecast(name: str, ahead: Any) -> Row:
    if ahead.error:
        return {"name": name, "ok": False, "reason": ahead.error}
    return {
        "name": name,
        "target": ahead.topology,
        "memory_mib": round(ahead.memory.total / 2**20, 1),
        "gflop": round(ahead.flops / 1e9, 2),
        "gb": round(ahead.bytes / 1e9, 3),
        "roofline_ms": round(1e3 * ahead.roofline.seconds, 3),
        "compile_s": round(ahead.compile_s, 1),
        "ok": True,
    }


def _language_model(setting: Setting) -> Any:
    from jaxsr.models.llama.config import LlamaConfig

    return LlamaConfig(**(LLAMA_TINY if setting.quick else LLAMA_1B))


def decoding(setting: Setting, *, peers: bool = False) -> Iterator[Row]:
    """Tokens a second in bfloat16, and the share of a copy's bandwidth that a decode step reaches.

    A step reads every weight once; the cache adds less than a hundredth here.

    Args:
      setting: where it runs.
      peers: jaxsr and transformers take turns. Otherwise jaxsr runs alone, with its kernels.
    """
    start_jax(setting)
    import numpy as np
    import torch

    from benchmarks.generation import generate
    from benchmarks.ops.races import copy_bandwidth
    from jaxsr.generation.jax_decoder import JaxDecoder
    from jaxsr.models.llama.network import CausalLM

    torch.manual_seed(0)
    config = _language_model(setting)
    network = CausalLM(config).bfloat16().eval()
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    peak = copy_bandwidth(1 << (22 if setting.quick else 28))
    engine = JaxDecoder(network)
    contenders = {"jaxsr": generate.engine_contender(engine)}
    named = {"transformers": False, "transformers, compiled": True} if peers else {}
    for name, compiled in named.items():
        if compiled and setting.device == "cpu":
            continue
        try:
            contender = generate.transformers_contender(
                network, device=setting.device, compiled=compiled
            )
            contender([[3, 5, 7]], 4)  # a peer that fails leaves the others their race
            contenders[name] = contender
        except Exception as error:
            yield _failed(name, error)
    options = generate.Options(
        new_tokens=16 if setting.quick else NEW_TOKENS, rounds=2 if setting.quick else 3
    )
    rng = np.random.default_rng(0)
    for batch in (1,) if setting.quick else (1, 16):
        prompts = rng.integers(3, config.vocab_size, (batch, PROMPT_TOKENS)).tolist()
        for row in generate.race(contenders, prompts, options):
            read = weights * row["decode_tokens_per_s"] / batch / 1e9
            yield {
                "name": f"{row['contender']}, batch {batch}",
                "share_of_copy_bandwidth": round(read / peak, 3),
                **row,
            }
    if peers:
        return
    run = partial(contenders["jaxsr"], [prompts[0]], options.new_tokens)
    yield {
        "name": "jaxsr, one prompt",
        "peak_device_mib": _peak_mib(),
        "compile_s": engine.compile_s,
        **kernel_times("jax", run, options.new_tokens),
    }


def _peak_mib() -> float | None:
    import jax

    used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return round(used / 2**20, 1) if used else None


def restoring(setting: Setting) -> Iterator[Row]:
    """A picture through the shipped enlarger in bfloat16, against torch eager and compiled."""
    from benchmarks.restoration import restore

    size = (96, 128) if setting.quick else (1080, 1920)
    contenders: tuple[restore.Contender, ...] = (
        ("jax", "eager") if setting.quick else ("jax", "channels_last", "max_autotune")
    )
    options = restore.Options(rounds=1, dtype="bfloat16", contenders=contenders, out=None)
    source = restore.picture_file(setting.folder, size)
    for contender, rows in restore.race(options, size, source).items():
        name = f"{size[1]}x{size[0]}, {contender}"
        if rows:
            kernels = {n: rows[0][n] for n in ("device_ms", "launches", "kinds") if n in rows[0]}
            yield {"name": name, **restore.summary(rows, size), **kernels}
        else:
            yield {"name": name, "ok": False, "reason": "its process failed; see the log"}


def kernels(setting: Setting) -> Iterator[Row]:
    """Resize and blur, against torch's own kernels, and a plain copy's bandwidth.

    Without torch.compile, which takes seconds for each row; `python -m benchmarks.ops` has it.
    """
    start_jax(setting)
    import torch

    from benchmarks.ops import filters, race, resize
    from benchmarks.ops.races import copy_bandwidth

    torch.set_grad_enabled(False)
    bandwidth = copy_bandwidth(1 << (22 if setting.quick else 28))
    rows = (*resize.GPU_ROWS, *filters.GPU_ROWS)
    for row in resize.ROWS[3:4] if setting.quick else rows:
        if row.name in setting.done:
            continue
        try:
            yield race.measure(
                row, 3 if setting.quick else 9, bandwidth, leave_out=["torch.compile"]
            )
        except Exception as error:
            yield _failed(row.name, error)


def _failed(name: str, error: Exception) -> Row:
    return {"name": name, "ok": False, "reason": f"{type(error).__name__}: {one_line(error)}"}
