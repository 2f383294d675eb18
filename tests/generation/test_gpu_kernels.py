"""Kernels of a decode step on a GPU, compiled ahead of time: how many a block takes.

Needs JAX's CUDA plugin (`pip install -e '.[aot-gpu]'`), but no GPU.
"""

import importlib.util
import re

import pytest
import torch

from jaxsr.generation.ahead_engine import AheadEngine
from jaxsr.generation.options import SamplingOptions
from jaxsr.interop.aot.topology import load_topology
from jaxsr.models.llama.config import LlamaConfig
from jaxsr.models.llama.loading import shapes_of

if importlib.util.find_spec("jax_cuda13_plugin") is None:
    pytest.skip("JAX's CUDA plugin is not installed", allow_module_level=True)

SILENT = ("get-tuple-element", "tuple", "bitcast", "parameter", "constant")
"""Operations without a kernel."""


def decode_step(layers):
    """The optimised loop body of a network as wide as Llama 3.2 1B."""
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    engine = AheadEngine(shapes_of(config, dtype=torch.bfloat16), load_topology("h100:1"))
    _, ahead = engine.compile(SamplingOptions(), batch=1, prompt=128, slots=256)
    assert ahead.error is None
    parts = re.split(r"\n(?=%|ENTRY)", ahead.text)
    names = re.findall(r"body=(%[\w.\-]+)", ahead.text)
    bodies = [part for part in parts if part.split(" ", 1)[0] in names]
    return max(bodies, key=len)


def operations(body):
    """(operation, result) of what runs."""
    found = re.findall(r"\n  (?:ROOT )?%\S+ = (\(.*?\)|\S+) ([a-z\-]+)\(", body)
    return [(name, shape) for shape, name in found if name not in SILENT]


@pytest.mark.slow
def test_a_block_takes_thirteen_kernels_and_copies_no_cache():
    one, two = (operations(decode_step(layers)) for layers in (1, 2))
    # Projections with their norm; rotated queries; two writes; scores; softmax; mixed values;
    # output; norm; gate and up; SwiGLU; down; sum.
    assert len(two) - len(one) == 13
    assert not [shape for name, shape in two if name == "copy" and "256" in shape]
