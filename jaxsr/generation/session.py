"""Generates from prompts with one loaded model, prints outputs and writes the report."""

import sys
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from jaxsr.errors import InputError
from jaxsr.generation.cache_file import load_snapshot, merged, save_snapshot
from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.generate_loop import Completion, Run, complete, continue_from
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.prompts import Prompt, write_rows
from jaxsr.generation.streaming import StreamPrinter
from jaxsr.models.llama.loading import LanguageModel, fingerprint
from jaxsr.models.llama.tokenizer import load_tokenizer
from jaxsr.models.load import load_model
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
        self.config, self.tokenizer = config, load_tokenizer(config.tokenizer or config.model)
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
        self.engine = self._engine(platform)
        release_freed_memory()
        self.load_s = time.perf_counter() - begin
        self.stop_ids = () if config.ignore_eos else self.model.stop_ids
        self.stop_ids += tuple(self._stop_id(text) for text in config.stop)
        recommended = self.model.sampling if config.model_sampling else {}
        self.options = SamplingOptions(
            max_new_tokens=config.max_new_tokens,
            temperature=recommended.get("temperature", config.temperature),
            top_k=recommended.get("top_k", config.top_k) or None,
            top_p=recommended.get("top_p", config.top_p),
            seed=config.seed,
        )
        self.rows: list[dict[str, Any]] = []
        self.last: tuple[Run, list[str]] | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Of the model, for files of its cache."""
        return fingerprint(self.model.network)

    def _engine(self, platform: str) -> Any:
        if self.config.engine == "torch":
            from jaxsr.generation.torch_decoder import TorchEngine

            return TorchEngine(self.model.network, device=platform)
        from jaxsr.generation.jax_decoder import JaxEngine
        from jaxsr.generation.sharding import tensor_mesh

        devices = self.config.devices
        if self.config.deterministic and devices > 1:
            print(f"deterministic: one device of {devices} computes", file=sys.stderr)
            devices = 1
        return JaxEngine(
            self.model.network,
            mesh=tensor_mesh(devices),
            programs=compiled_folder(self.config) / "traced",
            packed=self.config.packed,
        )

    def _stop_id(self, text: str) -> int:
        if text.isdecimal():
            return int(text)
        ids = self.tokenizer.encode(text, raw=False)
        if len(ids) != 1:
            raise InputError(
                f"stop {text!r} is {len(ids)} tokens of this model; give text that is one, or an id"
            )
        return ids[0]

    def _ids(self, prompt: Prompt) -> list[int]:
        if self.config.raw or self.tokenizer.template is None:
            return self.tokenizer.encode(prompt.text)
        return self.tokenizer.encode(self.tokenizer.chat(prompt.messages), raw=False)

    def run(self, prompts: Sequence[Prompt], batch_size: int) -> None:
        """Generates from all the prompts at one batch size."""
        ids = [self._ids(prompt) for prompt in prompts]
        run = complete(
            self.engine,
            ids,
            self.options,
            batch_size=batch_size,
            stop_ids=self.stop_ids,
            deterministic=self.config.deterministic,
            padding=self.config.padding,
            on_tokens=self._printer(batch_size),
            keep_snapshots=self.config.save_cache is not None,
        )
        texts = [prompt.text for prompt in prompts]
        self._add(run, texts, [len(i) for i in ids], batch_size)

    def resume(self) -> None:
        """Goes on from the saved batch."""
        assert self.config.resume is not None
        snapshot, texts = load_snapshot(
            self.config.resume,
            fingerprint=self.fingerprint,
            model=self.model.name,
            network=self.model.network,
        )
        run = continue_from(
            self.engine,
            snapshot,
            self.options,
            stop_ids=self.stop_ids,
            on_tokens=self._printer(len(texts)),
            keep_snapshots=self.config.save_cache is not None,
        )
        fed = (snapshot.outputs != -1).sum(1) - 1
        counts = [int(c) for c in snapshot.filled - fed]
        self._add(run, texts, counts, len(texts))

    def _printer(self, batch_size: int) -> StreamPrinter | None:
        if not self.config.streams(batch_size):
            return None
        return StreamPrinter(
            self.tokenizer.decode,
            stop_ids=self.stop_ids,
            max_new_tokens=self.options.max_new_tokens,
        )

    def _add(self, run: Run, texts: list[str], counts: list[int], batch_size: int) -> None:
        streamed = self.config.streams(batch_size)
        for place, done in enumerate(run.completions):
            self.rows.append(self._row(done, texts[place], counts[place], batch_size))
            if streamed:
                continue
            if len(texts) > 1 or len(self.config.batch_size) > 1:
                print(f"[{done.index}, batch size {batch_size}] {texts[place]}")
            print(self.rows[-1]["output"] + "\n")
        if streamed:
            print()
        self.last = (run, texts)

    def _row(self, done: Completion, text: str, count: int, batch_size: int) -> dict[str, Any]:
        ids = [token for token in done.tokens if token not in self.stop_ids]
        config, options = self.config, self.options
        return {
            "device": self.engine.device,
            "engine": config.engine,
            "model": self.model.name,
            "dtype": config.dtype,
            "quantize": config.quantize,
            "batch_size": batch_size,
            "index": done.index,
            "row": done.row,
            "prompt": text,
            "prompt_tokens": count,
            "output": self.tokenizer.decode(ids),
            "output_tokens": len(done.tokens),
            "output_ids": done.tokens,
            "finish": done.finish,
            "temperature": options.temperature,
            "top_k": options.top_k,
            "top_p": options.top_p,
            "seed": options.seed,
            "deterministic": config.deterministic,
            "first_token_s": round(done.prefill_s, 6),
            "decode_s": round(done.decode_s, 6),
            "decode_tokens_per_s": round(done.decode_tokens_per_s, 2),
        }

    def finish(self) -> None:
        """Writes the files that the options name, and a summary to stderr."""
        config = self.config
        if config.out is not None:
            write_rows(config.out, self.rows)
        if config.save_cache is not None and self.last is not None:
            run, texts = self.last
            save_snapshot(
                config.save_cache,
                merged(run.snapshots),
                fingerprint=self.fingerprint,
                model=self.model.name,
                prompts=texts,
            )
        rates = [row["decode_tokens_per_s"] for row in self.rows]
        print(
            f"{self.engine.device}: {len(self.rows)} outputs, "
            f"{sum(row['output_tokens'] for row in self.rows)} tokens, "
            f"{sum(rates) / len(rates):.1f} tokens/s decoding; loaded in {self.load_s:.1f} s, "
            f"compiled in {self.engine.compile_s:.1f} s",
            file=sys.stderr,
        )
