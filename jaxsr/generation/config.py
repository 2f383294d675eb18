"""The options of `jaxsr.generate`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jaxsr.errors import InputError
from jaxsr.generation.options import SamplingOptions
from jaxsr.interop.fields import number
from jaxsr.runtime.options import AotOptions

_DRAFT_TOKENS = 4


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(SamplingOptions, AotOptions):
    """Generates text with a causal language model, on JAX or on torch."""

    prompt: tyro.conf.Positional[tuple[str, ...]] = ()
    """Prompts to continue."""
    model: Path
    """Hugging Face folder (config.json, safetensors, tokenizer.json), .gguf file, or a name on the
    hub such as HuggingFaceTB/SmolLM2-135M; also ORG/NAME@REVISION and hf:ORG/NAME:FILE.gguf."""
    implementation: Literal["auto", "own", "transformers"] = "auto"
    """own: jaxsr's networks for Llama and Qwen3. transformers: the code of the model's own family.
    auto: own, if the family has one."""
    draft_model: Path | None = None
    """A smaller model with the same tokenizer, named as in --model. It proposes several tokens,
    which the model checks in one forward pass; greedy tokens stay the same."""
    prompts: Path | None = None
    """File of prompts, one per line: .txt, or .jsonl with prompt, text or messages, and optionally
    a seed. With --out FILE.jsonl a killed run continues where it stopped."""
    tokenizer: Path | None = None
    """Folder, ORG/NAME of the hub, or tokenizer.json to use instead of the model's own."""
    raw: bool = False
    """Pass prompts unchanged, without the model's chat template."""
    system: str | None = None
    """System message before every prompt; needs the chat template."""
    model_sampling: bool = False
    """Choose tokens as the model's generation_config.json says; options on the command line take
    precedence."""
    named_options: tyro.conf.Suppress[frozenset[str]] = frozenset()
    """Names of the options that the command line gives, which take precedence over the model's even
    where they equal the default."""
    batch_size: tuple[int, ...] = number((1,), most=4096)
    """Number of prompts that run together; when one ends, the next takes its place. With several
    values, everything runs once with each."""
    stop: tuple[str, ...] = ()
    """Further stops of an output: texts, special tokens by name, or token ids."""
    ignore_eos: bool = False
    """Continue after the model's own end tokens."""
    deterministic: bool = False
    """Make each output independent of batch size, position, padding, mesh and other prompts, bit
    for bit: every prompt runs alone, in shapes of its own, on one device."""
    padding: Literal["right", "left"] = "right"
    """Side on which the shorter prompts of a batch are padded; the tokens are the same."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the blocks' weights when they are loaded; --dtype remains that of the
    computation."""
    packed: Literal["exact", "fast", "off"] = "exact"
    """Products with a GGUF file's weights. exact: from the packed blocks. off: weights are unpacked
    on loading, which takes up to eight times the memory. fast is a deprecated name of exact."""
    stream: Literal["auto", "on", "off"] = "auto"
    """Print tokens as they are generated. auto: if prompts run one at a time and the output is a
    terminal."""
    out: Path | None = None
    """.jsonl or .csv file with one row per prompt and batch size; rows of .jsonl are written as
    outputs end."""
    warm_up: tuple[int, ...] | None = number(None, least=1, most=2**24)
    """Compile the programs for prompts of so many tokens (default: 16) instead of generating. Give
    the other options as in later runs."""
    save_cache: Path | None = None
    """Save the KV cache and tokens to this file (safetensors) at the end."""
    resume: Path | None = None
    """Continue from a file of --save-cache instead of prompts; --max-new-tokens includes its
    tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, text in (("system", self.system or ""), *(("stop", one) for one in self.stop)):
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise InputError(f"{name} is not UTF-8 text: {text!r:.80}; give it as UTF-8")
        if not self.batch_size or min(self.batch_size) < 1:
            raise InputError(f"batch_size needs values of at least 1, got {self.batch_size}")
        if "" in self.stop:
            raise InputError("stop got an empty text, which every output has; leave it out")
        if self.system and self.raw:
            raise InputError("system needs the chat template; drop --raw or --system")
        if self.num_draft_tokens is not None and self.draft_model is None:
            raise InputError(
                f"num_draft_tokens={self.num_draft_tokens} needs a draft model; give --draft-model"
            )
        if self.proposals is not None and self.engine == "torch":
            raise InputError(
                f"{self.named_proposals} is for --engine jax; leave it out, or --engine torch"
            )
        if self.draft_model is not None and self.resume is not None:
            raise InputError(
                "a saved batch has no cache of the draft model; leave --draft-model or --resume out"
            )
        if self.warm_up is not None:
            self._check_warm_up()
        if self.save_cache is not None and len(self.batch_size) > 1:
            raise InputError("save_cache needs a single batch size")
        self.streams(max(self.batch_size))

    def _check_warm_up(self) -> None:
        others = ("prompt", "prompts", "resume", "out", "save_cache", "aot")
        if conflicts := [name for name in others if getattr(self, name) not in (None, ())]:
            raise InputError(f"warm_up compiles, and {conflicts[0]} is of other runs; leave it out")
        if self.engine == "torch":
            raise InputError("warm_up compiles JAX's programs; leave --engine torch out")

    @property
    def draft_tokens(self) -> int | None:
        if self.draft_model is None:
            return self.num_draft_tokens
        return self.num_draft_tokens or _DRAFT_TOKENS

    @property
    def continues(self) -> bool:
        """Whether a killed run continues from its rows."""
        rows = self.out is not None and self.out.suffix == ".jsonl"
        return rows and self.resume is None and self.save_cache is None

    def streams(self, batch_size: int) -> bool:
        """Whether tokens are printed as they are generated.

        Raises:
          InputError: `stream` is on, and several outputs run together.
        """
        one_at_a_time = (batch_size == 1 or self.deterministic) and self.num_beams == 1
        if self.stream == "on" and not one_at_a_time:
            raise InputError(
                "--stream on prints one output at a time; use --batch-size 1 and no beams"
            )
        terminal = self.stream == "auto" and sys.stdout.isatty()
        return one_at_a_time and (self.stream == "on" or terminal)
