"""Weights that stay in the blocks of their GGUF file: formats, layers, engines, memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("gguf")

import gguf

from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.generate_loop import complete
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.run_settings import engine_settings
from jaxsr.generation.sharding import tensor_mesh
from jaxsr.generation.torch_decoder import TorchDecoder
from jaxsr.models.language_models import load_language_model
from jaxsr.models.llama.block_formats import FORMATS
from jaxsr.models.llama.loading import fingerprint
from jaxsr.models.llama.packed import BlockLinear, arranged
from tests.generation.gguf_writer import K, write_gguf

GREEDY = SamplingOptions(max_new_tokens=12)
PROMPTS = [[5, 9, 31, 14], [61, 12]]


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: gguf.GGMLQuantizationType(kind).name)
def test_blocks_mean_what_the_gguf_package_says(kind):
    block, number = FORMATS[kind], gguf.GGMLQuantizationType(kind)
    assert gguf.GGML_QUANT_SIZES[number] == (block.weights, block.size)
    # Any bytes are a block; those below 60 make no infinite scale.
    raw = np.random.default_rng(0).integers(0, 60, (16, 4 * block.size), dtype=np.uint8)
    reference = gguf.quants.dequantize(raw, number)
    layer = BlockLinear(kind, torch.from_numpy(raw))
    np.testing.assert_array_equal(layer.dequantized().numpy(), reference)
    np.testing.assert_array_equal(arranged(layer).dequantized().numpy(), reference)
    rows = arranged(layer).rows(torch.tensor([3, 1])).numpy()
    np.testing.assert_array_equal(rows, reference[[3, 1]])


@pytest.mark.parametrize("kind", [3, 8, 12, 14])
def test_layers_compute_with_their_blocks(kind):
    block = FORMATS[kind]
    raw = np.random.default_rng(0).integers(0, 60, (16, 8 * block.size), dtype=np.uint8)
    bias = torch.randn(16, generator=torch.Generator().manual_seed(0))
    layer = BlockLinear(kind, torch.from_numpy(raw), bias=bias)
    x = torch.randn(2, 3, layer.in_features, generator=torch.Generator().manual_seed(1))
    reference = x.double() @ layer.dequantized().double().T + bias
    for y in (layer(x), arranged(layer)(x)):
        error = (y.double() - reference).norm() / reference.norm()
        assert error < 1e-6


@pytest.fixture(scope="module")
def path(hf_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(path, hf_model("llama"), K.Q8_0)
    return path


def tokens(engine):
    return [c.tokens for c in complete(engine, PROMPTS, GREEDY, batch_size=2).completions]


@pytest.fixture(scope="module")
def reference(path):
    return tokens(TorchDecoder(load_language_model(path, packed=False).network))


@pytest.mark.parametrize(
    "how",
    [
        "torch",
        "jax",
        pytest.param("unpacked", marks=pytest.mark.slow),
        pytest.param("off", marks=pytest.mark.slow),
        pytest.param("mesh", marks=pytest.mark.slow),
    ],
)
def test_every_way_of_computing_gives_the_tokens(how, path, reference):
    network = load_language_model(path, packed=how != "unpacked").network
    if how == "torch":
        engine = TorchDecoder(network)
    else:
        engine = JaxDecoder(
            network,
            packed="off" if how == "off" else "exact",
            mesh=tensor_mesh(2) if how == "mesh" else None,
        )
    assert tokens(engine) == reference


@pytest.mark.slow
def test_programs_with_calls_are_stored_too(path, reference, tmp_path):
    network = load_language_model(path).network
    for _ in range(2):
        assert tokens(JaxDecoder(network, programs=tmp_path)) == reference
    assert list(tmp_path.glob("decode-*"))


def test_fast_is_exact_with_a_warning(path, caplog):
    assert engine_settings(GenerateConfig(model=path, packed="fast")).packed == "exact"
    assert "--packed fast is deprecated" in caplog.text


def test_blocks_are_part_of_the_fingerprint(path, hf_model, tmp_path):
    write_gguf(tmp_path / "other.gguf", hf_model("llama"), K.Q4_0)
    marks = {fingerprint(load_language_model(p).network) for p in (path, tmp_path / "other.gguf")}
    assert len(marks) == 2


_CHILD = """
import sys
from pathlib import Path
import jax, torch
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.models.language_models import load_language_model
from jaxsr.runtime.allocator import release_freed_memory

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile")))

tiny, path = Path(sys.argv[1]), Path(sys.argv[2])
JaxDecoder(load_language_model(tiny).network)
release_freed_memory()
before = resident()
model = load_language_model(path)
engine = JaxDecoder(model.network)
release_freed_memory()
print((resident() - before) * 1024 / path.stat().st_size)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_a_file_takes_at_most_three_times_its_size(path, tmp_path):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_hidden_layers=6,
        num_attention_heads=16, num_key_value_heads=4, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    write_gguf(tmp_path / "m.gguf", model, K.Q4_0, extra={"context_length": 512})
    command = [sys.executable, "-c", _CHILD, str(path), str(tmp_path / "m.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert float(done.stdout.split()[-1]) <= 3
