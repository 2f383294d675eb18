"""Networks on a CPU: forward passes and gradients of a training step, beside torch's own.

jaxsr with its kernels for CPUs, jaxsr with XLA's alone, and eager torch with channels first and
last take turns in one process, with the allocator of jaxsr's commands: in each turn a call, and one
that is timed. float32, random weights. A gradient is that of the mean square of the outputs, to all
parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.report import RESULTS, Report, ReportOptions, Row, run_benchmark
from benchmarks.harness.turns import race
from benchmarks.steps.cpu_programs import program_with
from jaxsr.runtime.allocator import keep_freed_memory

LLAMA = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 6, "use_cache": False,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 4096,
}  # fmt: skip
GPT2 = {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 4096, "use_cache": False}


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    networks: tuple[str, ...] = (
        "timm:vit_tiny_patch16_224", "timm:swin_tiny_patch4_window7_224", "timm:convnext_tiny",
        "timm:efficientnet_b0", "timm:resnet50", "transformers:llama", "transformers:gpt2",
    )  # fmt: skip
    """timm's by name, with pictures of 224²; two of transformers, of 6 layers, with 256 words."""
    batch: int = 4
    """Pictures or sentences."""
    rounds: int = 7
    """Turns of each contender."""
    out: Path | None = RESULTS / "cpu_networks.json"
    """JSON of the figures."""


def _network_and_input(name: str, batch: int) -> tuple[Any, Any]:
    import torch

    from jaxsr.models.libraries import import_library

    torch.manual_seed(0)
    library, _, model = name.partition(":")
    module = import_library(library)
    if library == "timm":
        return module.create_model(model), torch.randn(batch, 3, 224, 224)
    options = {"llama": LLAMA, "gpt2": GPT2}[model]
    config = module.AutoConfig.for_model(model, bos_token_id=None, eos_token_id=None, **options)
    network = module.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return network, torch.randint(0, 4096, (batch, 256))


def _output(value: Any) -> Any:
    return getattr(value, "logits", value)


def _by_torch(network: Any, inputs: Any, *, channels_last: bool) -> dict[str, Callable[[], Any]]:
    import torch

    if channels_last:
        network = network.to(memory_format=torch.channels_last)
        inputs = inputs.to(memory_format=torch.channels_last)

    def forward() -> None:
        network.eval()
        with torch.no_grad():
            network(inputs)

    def gradient() -> None:
        network.train().zero_grad(set_to_none=True)
        _output(network(inputs)).square().mean().backward()

    return {"forward": forward, "gradient": gradient}


def _by_jax(network: Any, inputs: Any, kernels: str) -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    from jaxsr.interop import to_jax

    model, key = to_jax(network), jax.random.key(0)

    def forward(params: Any, inputs: jax.Array) -> jax.Array:
        return _output(model.apply(params, model.buffers, inputs)[0])

    def loss(params: Any, inputs: jax.Array) -> jax.Array:
        output, _ = model.apply(params, model.buffers, inputs, train=True, rng=key)
        return jnp.square(_output(output)).mean()

    arrays = model.params, jnp.asarray(inputs.numpy())
    return {
        "forward": partial(program_with(kernels, forward, *arrays), *arrays),
        "gradient": partial(program_with(kernels, jax.grad(loss), *arrays), *arrays),
    }


def measure(options: Options) -> None:
    """Times every network and writes the report."""
    import copy

    import jaxsr.interop  # noqa: F401  # before torch: its idle threads sleep

    report = Report("cpu_networks", options, key=("network", "program"))
    for name in options.networks:
        network, inputs = _network_and_input(name, options.batch)
        contenders = {
            "jaxsr": _by_jax(network, inputs, "native"),
            "jaxsr, XLA": _by_jax(network, inputs, "xla"),
            "torch": _by_torch(copy.deepcopy(network), inputs, channels_last=False),
        }
        if inputs.ndim == 4:
            contenders["torch, channels last"] = _by_torch(network, inputs, channels_last=True)
        for program in ("forward", "gradient"):
            calls = {each: programs[program] for each, programs in contenders.items()}
            row: Row = {"network": name, "program": program, "batch": options.batch}
            race(report, row, calls, rounds=options.rounds, warmup=2, untimed=1)


if __name__ == "__main__":
    keep_freed_memory("train")
    run_benchmark(measure, Options)
