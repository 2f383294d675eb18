"""The verdict counts results, weights and tokens, of live engines and of stored traces alike."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.compare import main
from jaxsr.comparison.compare_engines import compare_engines
from jaxsr.comparison.compare_traces import compare_traces
from jaxsr.comparison.recorded_trace import make_trace, open_backend
from jaxsr.comparison.statistics import sample_places
from jaxsr.comparison.summary import headline
from jaxsr.comparison.trace_file import load_trace, save_trace
from tests.comparison.faults import JAX, TORCH, make_workload, single


class Branches(nn.Module):
    """Computes something else where torch says that the module is compiled, as it is in JAX."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 64)
        self.change = change
        self.requires_grad_(False)

    def forward(self, x):
        return self.change(self.layer(x), torch.compiler.is_compiling())


def last(y, compiled):
    return y.relu() * 2 if compiled else y.relu()


def second(y, compiled):
    return y, y.relu() + 1 if compiled else y.relu()


def longer(y, compiled):
    return (y, y) if compiled else (y,)


NOISE = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)


def recorded(workload, side, folder: Path):
    save_trace(make_trace(workload, open_backend(workload, side)), folder)
    return load_trace(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (last, "(root) · mul"),
        (second, "(root) · add"),
        (longer, "the results differ by more than rounding explains"),
    ],
)
def test_results_count_live_and_stored(change, words, tmp_path):
    workload = single(Branches(change), NOISE)
    live, *_ = compare_engines(workload, TORCH, JAX)
    traces = [recorded(workload, side, tmp_path / side.engine) for side in (TORCH, JAX)]
    for comparison in (live, compare_traces(*traces)):
        assert not comparison.agree
        assert headline(comparison).startswith("DIFFER: ") and words in headline(comparison)


def test_equal_further_results_agree(tmp_path):
    workload = single(Branches(lambda y, compiled: {"a": y, "b": (y > 0, y.bfloat16())}), NOISE)
    live, first, _ = compare_engines(workload, TORCH, JAX)
    stored = recorded(workload, JAX, tmp_path)
    assert stored.further is not None and [*stored.further] == ["b[0]", "b[1]"]
    for comparison in (live, compare_traces(first, stored)):
        assert comparison.agree and len(comparison.outputs) == 3
    # Traces of 0.3 and before lack them.
    assert compare_traces(first, replace(stored, further=None)).agree


def test_one_weight_counts_between_torch_and_jax(tmp_path):
    network = Branches(lambda y, compiled: y)
    traces = [recorded(single(network, NOISE), TORCH, tmp_path / "a")]
    place = next(k for k in range(100, 4096) if k not in set(sample_places(4096).tolist()))
    with torch.no_grad():
        network.layer.weight.view(-1)[place] *= 1 + 1e-5
    traces.append(recorded(single(network, NOISE), JAX, tmp_path / "b"))
    comparison = compare_traces(*traces)
    assert [name for name, _ in comparison.weights] == ["layer.weight"] and not comparison.agree


def test_numbers_that_jax_has_in_another_dtype_are_the_same_weights():
    network = Branches(lambda y, compiled: y)
    network.register_buffer("places", torch.arange(400))  # int64, int32 in JAX
    comparison, *_ = compare_engines(single(network, NOISE), TORCH, JAX)
    assert comparison.agree and comparison.weights == []


@pytest.fixture
def llama_trace(tmp_path):
    words = ["--model", "llama", "--steps", "3", "--engine", "torch", "--platform", "cpu"]
    assert main(["trace", *words, "--out", str(tmp_path / "llama")]) == 0
    return load_trace(tmp_path / "llama")


def test_tokens_of_another_model_are_refused(llama_trace, tmp_path, capsys):
    save_trace(replace(llama_trace, tokens=[7, 320, 8]), tmp_path / "beyond")
    save_trace(replace(llama_trace, tokens=[7, -1, 8]), tmp_path / "below")
    save_trace(replace(llama_trace, tokens=[]), tmp_path / "none")
    span = ["trace", "--model", "span", "--size", "16", "--engine", "torch", "--platform", "cpu"]
    assert main([*span, "--out", str(tmp_path / "span")]) == 0
    llama = ["trace", "--model", "llama", "--steps", "3", "--platform", "cpu"]
    cases = [
        (llama, "beyond", "the token 320 is none of the 320 that"),
        (llama, "below", "the token -1 is none of the 320 that"),
        (llama, "none", "has no tokens"),
        (llama, "span", "different models"),
        (span, "span", "has no tokens"),
        ([*llama, "--steps", "2"], "llama", "different inputs"),
    ]
    for words, source, message in cases:
        out = tmp_path / "out"
        capsys.readouterr()
        assert main([*words, "--tokens-of", str(tmp_path / source), "--out", str(out)]) == 2
        (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("jaxsr: ")]
        assert message in line and "; " in line and not out.exists()
    words = [*llama, "--engine", "torch", "--tokens-of", str(tmp_path / "llama")]
    assert main([*words, "--out", str(out)]) == 0
    assert load_trace(out).tokens == llama_trace.tokens


def test_a_prompt_beyond_the_vocabulary_is_refused():
    workload = replace(make_workload("llama"), prompt=(1, 500))
    with pytest.raises(ValueError, match="the token 500 is none of the 320 that test knows"):
        make_trace(workload, open_backend(workload, TORCH))
