"""Logits that are NaN or infinite end a run with one line; unfinished characters are held back."""

import copy
import dataclasses
from typing import cast

import numpy as np
import pytest
import torch

from jaxsr.errors import InputError
from jaxsr.generation.generate_loop import complete
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.stop_text import StopText
from jaxsr.generation.streaming import StreamPrinter
from jaxsr.generation.torch_decoder import TorchDecoder

GREEDY = SamplingOptions(max_new_tokens=6)
KINDS = {
    "greedy": GREEDY,
    "drawn": dataclasses.replace(GREEDY, temperature=0.8, top_k=20, top_p=0.9),
    "lookup": dataclasses.replace(GREEDY, prompt_lookup=3),
    "beams": dataclasses.replace(GREEDY, num_beams=2),
    "logprobs": dataclasses.replace(GREEDY, logprobs=2),
}
PROMPTS = [[5, 6, 7], [8, 9, 10, 11]]


@pytest.fixture(scope="module")
def broken(network):
    """The network with one weight of its last norm out of order."""

    def make(value):
        copied = copy.deepcopy(network("llama-plain"))
        with torch.no_grad():
            copied.model.norm.weight[3] = value
        return copied

    return make


@pytest.mark.sample(6)
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["nan", "infinite"])
@pytest.mark.parametrize(
    ("engine", "options"),
    [
        *(pytest.param(JaxDecoder, options, id=f"jax-{name}") for name, options in KINDS.items()),
        *(
            pytest.param(
                TorchDecoder,
                KINDS[name],
                id=f"torch-{name}",
                marks=() if name == "greedy" else pytest.mark.slow,
            )
            for name in ("greedy", "drawn", "beams")
        ),
    ],
)
def test_no_token_is_chosen_of_logits_that_are_not_finite(broken, engine, options, value):
    with pytest.raises(InputError, match=r"prompt \d: the model's logits are NaN or infinite at"):
        complete(engine(broken(value)), PROMPTS, options, batch_size=2)


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (JaxDecoder, "greedy"),
        (TorchDecoder, "greedy"),
        pytest.param(JaxDecoder, "lookup", marks=pytest.mark.slow),
        pytest.param(JaxDecoder, "drawn", marks=pytest.mark.slow),
    ],
)
def test_logits_that_are_nan_from_the_second_token_on(network, engine, name):
    """The first token's own embedding is NaN: prefill is sound, and the step after it is not."""
    options = KINDS[name]
    copied = copy.deepcopy(network("llama-plain"))  # whose head has weights of its own
    (first,) = complete(engine(copied), PROMPTS[:1], options).completions
    with torch.no_grad():
        copied.model.embed_tokens.weight[first.tokens[0]] = torch.nan
    with pytest.raises(InputError, match=r"prompt 0: .* at token 2"):
        complete(engine(copied), PROMPTS[:1], options)


@pytest.mark.parametrize("engine", [JaxDecoder, TorchDecoder])
@pytest.mark.parametrize("name", ["greedy", "drawn"])
def test_one_logit_that_is_nan_is_enough(network, engine, name):
    """Also where a draw would have taken another token."""
    copied = copy.deepcopy(network("llama-plain"))
    with torch.no_grad():
        copied.lm_head.weight[17] = torch.nan
    with pytest.raises(InputError, match="NaN or infinite at token 1,"):
        complete(engine(copied), PROMPTS[:1], KINDS[name])


@pytest.mark.parametrize("engine", [JaxDecoder, TorchDecoder])
def test_a_row_without_a_token_ends_at_once(broken, engine):
    """It does not wait for the last of the tokens asked for."""
    running = engine(broken(np.nan))
    batch = running.start(PROMPTS, [0, 1], GREEDY, seeds=[0, 0])
    assert not running.running(batch).any()


def test_finished_prompts_are_reported_before_the_one_that_fails(network, monkeypatch):
    """The second prompt's own token makes NaN; the first has been handed over."""
    copied = copy.deepcopy(network("llama-plain"))
    with torch.no_grad():
        copied.model.embed_tokens.weight[300] = torch.nan
    done = []
    with pytest.raises(InputError, match=r"prompt 1: .* at token 1"):
        complete(
            TorchDecoder(copied),
            [[5, 6, 7], [300, 4]],
            GREEDY,
            batch_size=1,
            on_done=lambda completion: done.append(completion.index),
        )
    assert done == [0]


class Texts:
    """Decodes tokens that are bytes, as tokenizers with byte fallback do: U+FFFD for each byte."""

    def text(self, ids):
        raw = bytes(ids)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            return raw[: error.start].decode() + "\ufffd" * (len(raw) - error.start)

    printable = text


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
@pytest.mark.parametrize("text", ["er 🙂 und 漢字 é", "👩‍👩‍👧‍👦!", "plain"])
def test_streamed_text_is_the_final_text(capsys, text, chunk):
    printer = StreamPrinter(cast(StopText, Texts()), stop_ids=())
    ids, printed = list(text.encode()), ""
    for start in range(0, len(ids), chunk):
        printer(0, ids[start : start + chunk])
        shown = capsys.readouterr().out
        assert "\ufffd" not in shown
        printed += shown
    printer.end(text)
    assert printed + capsys.readouterr().out == text + "\n\n"


def test_the_first_token_waits_for_the_program_of_the_second(capsys):
    printer = StreamPrinter(cast(StopText, Texts()), stop_ids=())
    printer(0, list(b"a"))
    assert capsys.readouterr().out == ""
    printer(0, list(b"b"))
    assert capsys.readouterr().out == "ab"


def test_text_that_a_decoder_changes_later_is_printed_whole(capsys):
    class Changing(Texts):
        def text(self, ids):
            return super().text(ids).capitalize()

    printer = StreamPrinter(cast(StopText, Changing()), stop_ids=())
    printer(0, list(b"ab"))
    printer.end("Ab")
    assert capsys.readouterr().out == "ab\nAb\n\n"


def test_outputs_stream_in_the_order_of_the_prompts(capsys):
    headers = iter(["[0]\n", "[1]\n", "[2]\n"])

    def show_prompt():
        print(next(headers), end="")

    printer = StreamPrinter(cast(StopText, Texts()), stop_ids=(), show_prompt=show_prompt)
    printer(1, list(b"later"))
    assert capsys.readouterr().out == ""
    printer(0, list(b"first"))
    printer(1, list(b" on"))
    assert capsys.readouterr().out == "[0]\nfirst"
    printer.end("first.")
    printer.show_waiting()
    assert capsys.readouterr().out == ".\n\n[1]\nlater on"
    printer.end("later on")
    printer.end("")
    assert capsys.readouterr().out == "\n\n[2]\n\n\n"
