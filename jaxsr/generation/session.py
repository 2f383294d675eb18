"""Generates from prompts with one loaded model, prints outputs and writes the report."""

import hashlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, NamedTuple

import torch

from jaxsr.errors import counted
from jaxsr.generation.cache_file import load_snapshot, merged, save_snapshot
from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.decoder import UNFILLED
from jaxsr.generation.draft_model import load_draft
from jaxsr.generation.generate_loop import complete, continue_from
from jaxsr.generation.options import LESS_MEMORY, SamplingOptions
from jaxsr.generation.prompts import Prompt
from jaxsr.generation.rounds import Completion, GenerationRun
from jaxsr.generation.row_file import NewFile, RowFile
from jaxsr.generation.run_settings import engine_settings, prompt_ids, sampling_options, stops
from jaxsr.generation.stop_text import StopText
from jaxsr.generation.streaming import StreamPrinter, for_output
from jaxsr.interop.out_of_memory import naming_out_of_memory
from jaxsr.models.language_models import load_language_model
from jaxsr.models.llama.loading import LanguageModel, fingerprint
from jaxsr.models.llama.tokenizer import load_tokenizer
from jaxsr.models.load import load_model
from jaxsr.runtime.activity import fitted
from jaxsr.runtime.allocator import release_freed_memory
from jaxsr.runtime.setup import compiled_folder


class Session:
    """A loaded model and the outputs so far.

    Args:
      config: of the command.
      platform: where the engine computes.
    """

    def __init__(self, config: GenerateConfig, platform: str) -> None:
        begin = time.perf_counter()
        self.config = config
        self.tokenizer = load_tokenizer(config.tokenizer or config.model)
        dtype = getattr(torch, config.dtype)
        model = load_model(
            config.model,
            kind="language model",
            dtype=dtype,
            scheme=config.quantize,
            implementation=config.implementation,
            packed=config.packed != "off",
        )
        assert isinstance(model, LanguageModel)
        self.model = model
        if config.resume or config.save_cache or config.continues:
            _ = self.fingerprint  # the engine takes the weights
        self.engine = self._engine(platform)
        release_freed_memory()
        self.load_s = time.perf_counter() - begin
        self.options = sampling_options(config, model.sampling)
        self.stop_ids, texts = stops(
            config, model.stop_ids, self.tokenizer, vocabulary=self.engine.config.vocab_size
        )
        self.texts = StopText(
            texts, self.tokenizer.decode, min_new_tokens=self.options.min_new_tokens
        )
        self.rows: list[dict[str, Any]] = []
        self.last: tuple[GenerationRun, list[str]] | None = None
        self._row_file: RowFile | None = None
        self._new_file: NewFile | None = None
        if config.out is not None and not config.continues:
            self._new_file = NewFile(config.out)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the model, for files of its cache."""
        return fingerprint(self.model.network)

    def _engine(self, platform: str) -> Any:
        if self.config.engine == "torch":
            from jaxsr.generation.torch_decoder import TorchDecoder

            return TorchDecoder(self.model.network, device=platform)
        from jaxsr.generation.jax_decoder import JaxDecoder
        from jaxsr.generation.sharding import tensor_mesh

        settings, devices = engine_settings(self.config), self.config.devices
        if settings.devices < devices:
            print(f"deterministic: one device of {devices} computes", file=sys.stderr)
        draft = self._draft_network()
        return JaxDecoder(
            self.model.network,
            draft=draft,
            mesh=tensor_mesh(settings.devices),
            programs=compiled_folder(self.config) / "traced",
            packed=settings.packed,
            keeps_values=False,
        )

    def _draft_network(self) -> Any:
        """The draft model's, if there is one; both networks must be able to take proposals back."""
        config, networks = self.config, [self.model.network]
        if config.draft_model is not None:
            draft = load_draft(
                load_language_model,
                config.draft_model,
                self.tokenizer,
                dtype=getattr(torch, config.dtype),
                packed=config.packed != "off",
            )
            networks.append(draft)
        if config.proposals is not None:
            for network in networks:
                network.check_verifies()
        return networks[1] if len(networks) > 1 else None

    def run(self, prompts: Sequence[Prompt]) -> None:
        """Generates from all the prompts, with each batch size."""
        ids = prompt_ids(self.config, prompts, self.tokenizer)
        sizes = self.config.batch_size
        config = self.config
        if config.continues:
            assert config.out is not None
            settings = {**self._settings(), "run": self._digest(prompts, ids)}
            self._row_file = RowFile(config.out, settings)
            texts = [prompt.text for prompt in prompts]
            self._row_file.check(
                [
                    {"batch_size": size, "index": index, "prompt": text}
                    for size in sizes
                    for index, text in enumerate(texts)
                ]
            )
        rows = self._row_file.rows if self._row_file is not None else []
        early = self._row_file.early if self._row_file is not None else []
        if known := {(row["batch_size"], row["index"]) for row in (*rows, *early)}:
            others = {str(row["device"]) for row in (*rows, *early)} - {self.engine.device}
            where = ", ".join(sorted(others))
            rounds = f", made on {where}; {self.engine.device} may round otherwise" * bool(others)
            print(f"{config.out} has {counted(len(known), 'row')} already{rounds}", file=sys.stderr)
        for number, batch_size in enumerate(sizes):
            skip = min(max(len(rows) - number * len(ids), 0), len(ids))
            if skip < len(ids):
                early_rows = {
                    row["index"]: row
                    for row in early
                    if row["batch_size"] == batch_size and row["index"] >= skip
                }
                with naming_out_of_memory(
                    rows=batch_size, option="--batch-size", advice=LESS_MEMORY
                ):
                    self._run(prompts, ids, batch_size, skip, early_rows)

    def _run(
        self,
        prompts: Sequence[Prompt],
        ids: Sequence[Sequence[int]],
        batch_size: int,
        skip: int,
        early: dict[int, dict[str, Any]],
    ) -> None:
        row_prompts = [
            _RowPrompt(p.text, len(i), self.options.seed if p.seed is None else p.seed)
            for p, i in zip(prompts, ids, strict=True)
        ]
        report = _InOrder(self, row_prompts, batch_size, skip, early)
        run = complete(
            self.engine,
            ids,
            self.options,
            batch_size=batch_size,
            stop_ids=self.stop_ids,
            stop_text=self.texts if self.texts.texts else None,
            deterministic=self.config.deterministic,
            padding=self.config.padding,
            seeds=[prompt.seed for prompt in prompts],
            skip={*range(skip), *early},
            on_tokens=report.printer,
            on_done=report,
            keep_snapshots=self.config.save_cache is not None,
        )
        self.last = (run, [prompt.text for prompt in prompts])

    def _settings(self) -> dict[str, Any]:
        """Columns that every row of this run has."""
        config, options = self.config, self.options
        names = [f.name for f in fields(SamplingOptions) if f.name not in ("logit_bias", "seed")]
        return {
            "engine": config.engine,
            "model": self.model.name,
            "draft_model": config.draft_model and config.draft_model.name,
            "dtype": config.dtype,
            "matmul_precision": config.matmul_precision,
            "quantize": config.quantize,
            **{name: getattr(options, name) for name in names},
            "logit_bias": list(options.logit_bias),
            "stop": list(config.stop),
            "ignore_eos": config.ignore_eos,
            "deterministic": config.deterministic,
        }

    def _digest(self, prompts: Sequence[Prompt], ids: Sequence[Sequence[int]]) -> str:
        """Digest of all else that decides the rows: weights, the prompts' tokens, seeds, end tokens
        and the tokenizer that writes the texts.
        """
        seeds = [self.options.seed, *(prompt.seed for prompt in prompts)]
        ends = sorted(self.stop_ids)
        parts = (self.fingerprint, self.tokenizer.digest, list(map(list, ids)), seeds, ends)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def warm_up(self, lengths: Sequence[int]) -> None:
        """Compiles the programs for as many prompts of each length as rows, and says how long."""
        soon = StopText((".",), lambda tokens: "." * (len(tokens) > 1))  # after the second token
        for batch_size in self.config.batch_size:
            for length in lengths:
                complete(
                    self.engine,
                    [[0] * length] * batch_size,
                    self.options,
                    batch_size=batch_size,
                    stop_ids=self.stop_ids,
                    stop_text=soon if self.options.num_beams == 1 else None,
                    deterministic=self.config.deterministic,
                    padding=self.config.padding,
                )
        print(
            f"{self.engine.device}: programs for prompts of {', '.join(map(str, lengths))} tokens "
            f"compiled in {self.engine.compile_s:.1f} s; loaded in {self.load_s:.1f} s"
        )

    def resume(self) -> None:
        """Goes on from the saved batch."""
        assert self.config.resume is not None
        snapshot, texts = load_snapshot(
            self.config.resume,
            fingerprint=self.fingerprint,
            model=self.model.name,
            network=self.model.network,
            tokenizer=self.tokenizer.digest,
        )
        counts = snapshot.filled - snapshot.counts + 1
        numbers = zip(counts.tolist(), snapshot.seeds.tolist(), strict=True)
        row_prompts = [
            _RowPrompt(text, *of_row) for text, of_row in zip(texts, numbers, strict=True)
        ]
        report = _InOrder(self, row_prompts, len(texts), 0, {})
        run = continue_from(
            self.engine,
            snapshot,
            self.options,
            stop_ids=self.stop_ids,
            stop_text=self.texts if self.texts.texts else None,
            on_tokens=report.printer,
            on_done=report,
            keep_snapshots=self.config.save_cache is not None,
        )
        self.last = (run, texts)

    def printer(
        self, batch_size: int, show_prompt: Callable[[], None], first: int
    ) -> StreamPrinter | None:
        """Prints tokens as they come, if asked for."""
        if not self.config.streams(batch_size):
            return None
        return StreamPrinter(
            self.texts, stop_ids=self.stop_ids, show_prompt=show_prompt, first=first
        )

    def add(self, row: dict[str, Any], batch_size: int) -> None:
        """Notes an output that has ended; prints it unless it was streamed."""
        self.rows.append(row)
        if self._row_file is not None:
            self._row_file.append(row)
        if not self.config.streams(batch_size):
            print(for_output(row["output"]) + "\n", flush=True)

    def keep(self, row: dict[str, Any]) -> None:
        """Notes an output that has ended before earlier ones, in case that these are never made."""
        if self._row_file is not None:
            self._row_file.keep(row)

    def row(self, done: Completion, prompt: "_RowPrompt", batch_size: int) -> dict[str, Any]:
        """The row of an output in a file."""
        settings = self._settings()
        if self._row_file is not None:
            settings = self._row_file.settings
        row = {
            "device": self.engine.device,
            **settings,
            "seed": prompt.seed,
            "batch_size": batch_size,
            "index": done.index,
            "row": done.row,
            "prompt": prompt.text,
            "prompt_tokens": prompt.tokens,
            "output": self._text(done.tokens),
            "output_tokens": len(done.tokens),
            "output_ids": done.tokens,
            "finish": done.finish,
            "first_token_s": round(done.prefill_s + done.compile_s, 6),
            "compile_s": round(done.compile_s, 6),
            "decode_s": round(done.decode_s, 6),
            "decode_tokens_per_s": round(done.decode_tokens_per_s, 2),
        }
        if done.beams:
            row["beams"] = [
                {"output": self._text(tokens), "output_ids": tokens, "score": score}
                for tokens, score in done.beams
            ]
        if done.logprobs is not None:
            row["token_logprobs"] = self._logprobs(done)
        return row

    def _text(self, tokens: Sequence[int]) -> str:
        return self.texts.text([token for token in tokens if token not in self.stop_ids])

    def _logprobs(self, done: Completion) -> list[dict[str, Any]]:
        """For each token its log-probability, and the likeliest tokens with theirs."""
        assert done.logprobs is not None
        most = self.options.logprobs

        def entry(token: int, value: float) -> dict[str, Any]:
            text = self.tokenizer.decode([token], special=True)
            known = None if math.isnan(value) else value  # of tokens before a resume
            return {"id": token, "token": text, "logprob": known}

        return [
            entry(token, float(value))
            | {
                "top": [
                    entry(int(i), float(v))
                    for i, v in zip(ids[:most], values[:most], strict=True)
                    if i != UNFILLED
                ]
            }
            for token, value, values, ids in zip(done.tokens, *done.logprobs, strict=True)
        ]

    def close(self) -> None:
        """Unlocks the file of rows, also after a run that failed."""
        for file in (self._row_file, self._new_file):
            if file is not None:
                file.close()

    def finish(self) -> None:
        """Writes the files that the options name, and a summary to stderr."""
        config = self.config
        if self._row_file is not None:
            self._row_file.complete()
        if self._new_file is not None:
            self._new_file.complete(self.rows)
        if config.save_cache is not None and self.last is not None:
            run, texts = self.last
            save_snapshot(
                config.save_cache,
                merged(run.snapshots),
                fingerprint=self.fingerprint,
                model=self.model.name,
                prompts=texts,
                tokenizer=self.tokenizer.digest,
            )
        rates = [row["decode_tokens_per_s"] for row in self.rows]
        rate = sum(rates) / max(len(rates), 1)
        line = (
            f"{self.engine.device}: {counted(len(self.rows), 'output')}, "
            f"{sum(row['output_tokens'] for row in self.rows)} tokens, "
            f"{rate:.1f} tokens/s decoding; loaded in {self.load_s:.1f} s, "
            f"compiled in {self.engine.compile_s:.1f} s"
        )
        print(fitted(line, sys.stderr), file=sys.stderr)


class _RowPrompt(NamedTuple):
    """A prompt as its row states it."""

    text: str
    tokens: int
    seed: int
    """Seed of its draws."""


class _InOrder:
    """Receives outputs as they end, and hands them on in the prompts' order.

    Args:
      session: that receives them.
      prompts: with what their rows state.
      batch_size: of the run.
      skip: the first prompts, which are left out.
      early: rows by number of later prompts, which are also left out.
    """

    def __init__(
        self,
        session: Session,
        prompts: Sequence[_RowPrompt],
        batch_size: int,
        skip: int,
        early: dict[int, dict[str, Any]],
    ) -> None:
        self._session, self._prompts = session, prompts
        self._batch_size, self._next = batch_size, skip
        self._early = early
        self.printer = session.printer(batch_size, self._show_prompt, skip)
        self._hand_on()

    def __call__(self, done: Completion) -> None:
        place = done.index
        row = self._session.row(done, self._prompts[place], self._batch_size)
        self._early[place] = row
        if place != self._next:
            self._session.keep(row)
        self._hand_on()

    def _hand_on(self) -> None:
        while (row := self._early.pop(self._next, None)) is not None:
            if self.printer is not None:
                self.printer.end(row["output"])
            else:
                self._show_prompt()
            self._session.add(row, self._batch_size)
            self._next += 1
            if self.printer is not None:
                self.printer.show_waiting()

    def _show_prompt(self) -> None:
        several = len(self._prompts) > 1 or len(self._session.config.batch_size) > 1
        if several:
            text = for_output(self._prompts[self._next].text)
            print(f"[{self._next}, batch size {self._batch_size}] {text}")
