"""Sides of a language model that differ in dtype, weights or nothing, with several rows."""

import jax
import pytest
import torch

from jaxsr import compare
from jaxsr.comparison.statistics import describe
from jaxsr.models.llama.quantized import dequantize, quantize
from jaxsr.models.registry import random_network


@pytest.fixture(autouse=True)
def restored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def engines(capsys, tmp_path, *options):
    arguments = ["--model", "llama", "--prompt", "Hi", "--steps", "1", "--out", str(tmp_path / "o")]
    status = compare.main(["engines", *arguments, *options])
    return status, " ".join(capsys.readouterr().out.split())


def test_int8_weights_are_found_where_they_are_multiplied(capsys, tmp_path):
    sides = ("--a", "jax,platform=cpu", "--b", "jax,platform=cpu")
    status, report = engines(capsys, tmp_path, *sides, "--quantize-b", "int8", "--batch-size", "2")
    assert status == 1
    assert "on cpu, random weights against jax float32 on cpu, random weights in int8" in report
    assert "the two sides have different weights" in report
    assert "layers.0.self_attn.q_proj · linear" in report and "on equal inputs" in report


@pytest.mark.slow
def test_float16_agrees_within_its_rounding(capsys, tmp_path):
    status, report = engines(capsys, tmp_path, "--b", "jax,platform=cpu,dtype=float16")
    assert status == 0 and "AGREE" in report


def test_float16s_masks_are_counted_apart():
    lowest = torch.finfo(torch.float16).min
    figures = describe(torch.tensor([1.0, lowest, -3.0], dtype=torch.float16).numpy())
    assert (figures.beyond, figures.low, figures.infinite) == (1, -3.0, 0)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_dequantised_layers_compute_what_quantised_ones_stand_for(scheme):
    network = quantize(random_network("llama").requires_grad_(False), scheme)
    tokens = torch.arange(6)[None]
    reference, _ = network(tokens)
    logits, _ = dequantize(network)(tokens)
    torch.testing.assert_close(logits, reference, atol=1e-4, rtol=1e-4)  # other order of products
    assert all(type(m).__name__ == "Linear" for n, m in network.named_modules() if "_proj" in n)
