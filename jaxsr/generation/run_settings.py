"""The command's options for one model: for a run, and for `--aot` of the same run."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from jaxsr.errors import InputError
from jaxsr.field_values import from_values
from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.options import SamplingOptions, recommended_options
from jaxsr.generation.packed_layers import Packed
from jaxsr.generation.prompts import Prompt

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of `JaxDecoder`."""

    devices: int
    """That weights and cache are split over."""
    packed: Packed
    """How weights in blocks are multiplied."""


def engine_settings(config: GenerateConfig) -> EngineSettings:
    """How the options have the JAX engine built."""
    devices = 1 if config.deterministic else config.devices
    if config.packed == "fast":
        log.warning("--packed fast is deprecated and computes what exact does; leave it out")
    packed = "off" if config.packed == "off" else "exact"
    return EngineSettings(devices=devices, packed=packed)


def sampling_options(config: GenerateConfig, generation: dict[str, Any]) -> SamplingOptions:
    """Options of the command; those that it does not name from the model, if asked for.

    Args:
      config: of the command.
      generation: fields of the model's `generation_config.json`.

    Raises:
      InputError: the model's fields are asked for, and are damaged or not computed here.
    """
    names = [field.name for field in fields(SamplingOptions)]
    chosen = {name: getattr(config, name) for name in names}
    chosen["num_draft_tokens"] = config.draft_tokens
    if not config.model_sampling:
        return SamplingOptions(**chosen)
    recommended, unknown = recommended_options(generation)
    if unknown:
        raise InputError(
            f"the model sets {', '.join(unknown)}, which jaxsr does not compute; "
            "leave --model-sampling out and name the options that you want"
        )
    default = SamplingOptions()
    named = {
        n: v for n, v in chosen.items() if n in config.named_options or v != getattr(default, n)
    }
    values = {**chosen, **recommended, **named}
    return from_values(SamplingOptions, values, prefix="generation_config.json: ")


def stops(
    config: GenerateConfig, model_stop_ids: tuple[int, ...], tokenizer: Any, *, vocabulary: int
) -> tuple[tuple[int, ...], list[str]]:
    """Tokens and texts that end an output.

    Args:
      config: of the command.
      model_stop_ids: the model's own.
      tokenizer: that knows the special tokens' names; None knows none.
      vocabulary: tokens that the model knows.

    Raises:
      InputError: `--stop` names a token that the model does not have.
    """
    special = tokenizer.inner.get_added_tokens_decoder() if tokenizer is not None else {}
    names = {token.content: i for i, token in special.items() if token.special}
    ids, texts = () if config.ignore_eos else model_stop_ids, []
    for text in config.stop:
        token = int(text) if text.isdecimal() else names.get(text)
        if token is None:
            texts.append(text)
            continue
        if token >= vocabulary:
            raise InputError(
                f"stop {text!r} is not a token of this model, which knows {vocabulary}; give a "
                "smaller id, or text"
            )
        ids += (token,)
    return ids, texts


def prompt_ids(
    config: GenerateConfig, prompts: Sequence[Prompt], tokenizer: Any
) -> list[list[int]]:
    """Token ids of prompts, with the chat template where the model has one.

    Raises:
      InputError: a prompt has several messages, tools or documents, and no template joins them.
    """
    reason = "--raw" if config.raw else ""
    if tokenizer.template is None:
        reason = "this model has no chat template"
    for index, prompt in enumerate(prompts) if reason else ():
        several = len(prompt.messages) > 1
        parts = {
            f"{len(prompt.messages)} messages": several,
            "tools": prompt.tools,
            "documents": prompt.documents,
        }
        if listed := " and ".join(name for name, is_given in parts.items() if is_given):
            raise InputError(
                f"prompt {index} has {listed}, which only a chat template joins ({reason}); leave "
                "--system and --raw out, or give one text"
            )
    if reason:
        return [tokenizer.encode(prompt.text) for prompt in prompts]
    chats = [
        tokenizer.chat(prompt.messages, tools=prompt.tools, documents=prompt.documents)
        for prompt in prompts
    ]
    return [tokenizer.encode(chat, raw=False) for chat in chats]
