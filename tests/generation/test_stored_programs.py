"""Traced programs from a folder: the same results, found again, never mistaken for another's."""

from functools import partial

import jax
import numpy as np
import pytest

from jaxsr.generation import stored_programs
from jaxsr.generation.generate_loop import complete
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.logits_processors import settings_of
from jaxsr.generation.options import SamplingOptions

PROMPTS = [[5, 7, 11], [20, 21, 22, 23]]
OPTIONS = SamplingOptions(max_new_tokens=6)


def run(network, folder, **how):
    engine = JaxDecoder(network, programs=folder)
    done = complete(engine, PROMPTS, OPTIONS, keep_snapshots=True, **how)
    tokens = [completion.tokens for completion in done.completions]
    return engine, tokens, [k.tobytes() for snap in done.snapshots for k in snap.cache.values()]


def kept(folder):
    return sorted(path.name for path in folder.glob("*.jaxexport"))


@pytest.fixture(scope="module")
def folder(network, tmp_path_factory):
    pytest.importorskip("flatbuffers", reason="flatbuffers is absent; pip install flatbuffers")
    folder = tmp_path_factory.mktemp("programs")
    run(network("llama"), folder)
    return folder


def test_a_stored_program_needs_no_trace_and_computes_the_same(network, folder, monkeypatch):
    names = kept(folder)
    assert {name.split("-")[0] for name in names} == {"prefill", "first_token", "decode"}
    _, *traced = run(network("llama"), None)
    monkeypatch.setattr(JaxDecoder, "_run", lambda *args, **kwargs: pytest.fail("traced again"))
    engine, *found = run(network("llama"), folder)
    assert found == traced  # tokens, and caches to the bit
    assert kept(folder) == names
    # The cache is still updated in place.
    decode = next(p for key, p in engine._programs.items() if key[0] == "decode")
    assert "input_output_alias" in decode.as_text()


@pytest.mark.parametrize(
    ("family", "precision", "surroundings"),
    [
        ("llama", "high", None),
        pytest.param("llama-plain", None, None, marks=pytest.mark.slow),
        pytest.param("llama", None, "another jax", marks=pytest.mark.slow),
    ],
)
def test_whatever_a_trace_depends_on_makes_another_program(
    family, precision, surroundings, network, folder, monkeypatch
):
    count = len(kept(folder))
    if surroundings is not None:
        monkeypatch.setattr(stored_programs, "_surroundings", lambda: (surroundings,))
    with jax.default_matmul_precision(precision):
        run(network(family), folder)
    assert len(kept(folder)) == count + 3


def test_a_damaged_file_is_made_anew(network, folder, caplog):
    _, *before = run(network("llama"), folder)
    for path in folder.iterdir():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    _, *after = run(network("llama"), folder)
    assert after == before
    assert "is damaged and will be made anew" in caplog.text


def test_a_folder_that_cannot_be_written_only_warns(network, tmp_path, caplog):
    pytest.importorskip("flatbuffers", reason="flatbuffers is absent; pip install flatbuffers")
    (tmp_path / "file").write_text("")
    _, tokens, _ = run(network("llama"), tmp_path / "file" / "programs")
    assert np.shape(tokens) == (2, 6)
    assert "is not kept" in caplog.text


def test_greedy_programs_of_a_cpu_leave_the_branches_of_sampling_out(network):
    engine = JaxDecoder(network("llama"))
    one = np.zeros(1, np.int32)

    def program(options):
        first_token = partial(engine._steps.first_token, *engine._first_token_options(options))
        logits, prompt = np.zeros((1, 320), np.float32), np.zeros((1, 8), np.int32)
        return str(jax.make_jaxpr(first_token)(logits, prompt, one, one, settings_of(options, ())))

    assert "top_k[" not in program(OPTIONS)
    assert "top_k[" in program(SamplingOptions(temperature=0.5))
    assert "top_k[" in program(SamplingOptions(repetition_penalty=1.5))
