"""Whether every model family loads, runs on the device, and agrees with plain torch."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxsr.doctor.checks import Finding, relative_error
from jaxsr.errors import one_line

# Dozens of layers in float32 at highest precision.
_TOLERANCE = 1e-3
_ADVICE = (
    "the section `torch in JAX` above says whether the adapter is at fault; "
    "python -m jaxsr.compare shows where platforms part"
)


def check_models() -> Iterator[Finding]:
    """A small network of each family, random weights: JAX on the device against torch."""
    for name, build in (("fast-srgan", _fast_srgan), ("mshnet", _mshnet), ("llama", _llama)):
        began = time.perf_counter()
        try:
            error = _difference(*build())
        except Exception as problem:
            yield Finding(
                name, "fail", f"{type(problem).__name__}: {one_line(problem)[:200]}", _ADVICE
            )
            continue
        detail = (
            f"loads, compiles and runs in {time.perf_counter() - began:.1f} s; differs from torch "
            f"by {error:.1e} of the largest value"
        )
        status = "ok" if error <= _TOLERANCE else "fail"
        yield Finding(name, status, detail, None if status == "ok" else _ADVICE)


def _fast_srgan() -> tuple[Any, tuple[Any, ...]]:
    from jaxsr.models.fast_srgan.config import FastSRGANConfig
    from jaxsr.models.fast_srgan.generator import Generator

    network = _seeded(lambda: Generator(FastSRGANConfig(width=16, depth=2, norm="batch")))
    return network, (_image(3, 24),)


def _mshnet() -> tuple[Any, tuple[Any, ...]]:
    from jaxsr.models.mshnet.config import MSHNetConfig
    from jaxsr.models.mshnet.network import MSHNet

    config = MSHNetConfig(widths=(8, 16, 16), blocks=(1, 1, 1), attention_ratio=4)
    return _seeded(lambda: MSHNet(config)), (_image(3, 32),)


def _llama() -> tuple[Any, tuple[Any, ...]]:
    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.llama.network import CausalLM

    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
    )  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, 96, (2, 16)).astype(np.int32)
    return _seeded(lambda: CausalLM(config)), (tokens,)


def _seeded(build: Callable[[], Any]) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval()


def _image(channels: int, side: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (1, channels, side, side)).astype(np.float32)


def _difference(network: Any, inputs: tuple[Any, ...]) -> float:
    import jax
    import torch

    from jaxsr.interop import to_jax

    model = to_jax(network)
    with jax.default_matmul_precision("highest"):
        run = jax.jit(lambda params, buffers, *x: model.apply(params, buffers, *x)[0])
        result = jax.tree.leaves(run(model.params, model.buffers, *inputs))[0]
    with torch.inference_mode():
        reference = jax.tree.leaves(network(*map(torch.from_numpy, inputs)))[0].numpy()
    return relative_error(result, reference)
