"""`python -m jaxsr.generate PROMPT… --model PATH`: text from a Llama or Qwen3 model.

The model is a Hugging Face folder or a GGUF file. Prompts are arguments, or lines of a .txt or
.jsonl file; outputs go to the terminal and, with --out, to a row per prompt.
"""

import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxsr.errors import InputError, MissingFileError
from jaxsr.generation.options import SamplingOptions
from jaxsr.runtime.aot_options import AheadOptions
from jaxsr.runtime.cli import cache_folder, parse_options, run_command, run_program

if TYPE_CHECKING:
    from jaxsr.generation.generate_loop import Completion, Run
    from jaxsr.generation.prompts import Prompt


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(SamplingOptions, AheadOptions):
    """One run of the command."""

    model: Path
    """Hugging Face folder (config.json, safetensors, tokenizer.json) or .gguf file."""
    file: Path | None = None
    """Prompts, one per line: .txt, or .jsonl with `prompt`, `text` or `messages`."""
    tokenizer: Path | None = None
    """Folder or tokenizer.json to use instead of the model's own."""
    raw: bool = False
    """Feed prompts as they are, without the model's chat template."""
    system: str | None = None
    """System message put before every prompt; needs the chat template."""
    model_sampling: bool = False
    """Take temperature, top_k and top_p from the model's generation_config.json."""
    batch_size: tuple[int, ...] = (1,)
    """Prompts that run together; several values run everything once with each."""
    stop: tuple[str, ...] = ()
    """Further tokens that end an output, as text that is one token, or as ids."""
    ignore_eos: bool = False
    """Go on after the model's own end tokens."""
    deterministic: bool = False
    """Make each output independent of batch size, position, padding and other prompts, bit for
    bit: every prompt runs alone, in shapes of its own."""
    padding: Literal["right", "left"] = "right"
    """Side on which the shorter prompts of a batch are padded; the tokens are the same."""
    engine: Literal["jax", "torch"] = "jax"
    """Who computes."""
    platform: Literal["auto", "tpu", "cuda", "cpu"] = "auto"
    """Where; `auto` takes the first that the machine has."""
    mesh: int = 1
    """Devices that weights and cache are split over (tensor parallel); simulated on the CPU."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights that are not quantised, cache and activations. bfloat16 is slow on a CPU."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the blocks' weights on loading; computation stays in `dtype`."""
    matmul_precision: Literal["default", "high", "highest"] = "highest"
    """Of float32 products; `default` lets TPUs multiply in bfloat16 and GPUs in TF32."""
    stream: Literal["auto", "on", "off"] = "auto"
    """Print tokens as they come; `auto`: when one prompt at a time goes to a terminal."""
    out: Path | None = None
    """.jsonl or .csv with one row per prompt and batch size."""
    save_cache: Path | None = None
    """File that the KV cache and tokens are saved to at the end (safetensors)."""
    resume: Path | None = None
    """Go on from such a file instead of prompts; max_new_tokens counts its tokens too."""
    compile_cache: Path | None = None
    """Folder of compiled programs. Default: in the user's cache folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        AheadOptions.__post_init__(self)
        if not self.batch_size or min(self.batch_size) < 1:
            raise InputError(f"batch_size needs values of at least 1, got {self.batch_size}")
        if self.mesh < 1:
            raise InputError(f"mesh must be at least 1, got {self.mesh}")
        if self.mesh > 1 and self.engine == "torch":
            raise InputError(f"mesh={self.mesh} needs --engine jax; torch runs on one device")
        if self.system and self.raw:
            raise InputError("system needs the chat template; drop --raw or --system")
        if self.engine == "torch" and self.platform == "tpu":
            raise InputError("the torch engine runs on cpu or cuda; use --engine jax for a TPU")
        if self.save_cache is not None and len(self.batch_size) > 1:
            raise InputError("save_cache needs a single batch size")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _generate(*parse(arguments)))


def parse(arguments: Sequence[str]) -> tuple[list[str], GenerateConfig]:
    """The prompts and the options."""
    import tyro

    def both(
        prompts: tyro.conf.Positional[tuple[str, ...]] = (),
        /,
        *,
        config: tyro.conf.OmitArgPrefixes[GenerateConfig],
    ) -> tuple[list[str], GenerateConfig]:
        return list(prompts), config

    return parse_options(
        both,
        arguments,
        prog="python -m jaxsr.generate",
        description="Generates text with a Llama or Qwen3 model, on JAX or on torch.",
    )


def _generate(texts: list[str], config: GenerateConfig) -> int | None:
    if config.aot is not None:
        from jaxsr.generation.aot import run

        return run(texts, config)
    from jaxsr.generation.prompts import Prompt, check_rows_path, read_prompts
    from jaxsr.models.llama.tokenizer import load_tokenizer

    # Everything cheap is checked before the weights are read.
    prompts = [Prompt.of(text, system=config.system) for text in texts]
    for index, text in enumerate(texts):
        if not text:
            raise InputError(f"prompt {index} is empty; give it some text")
    if config.file is not None:
        prompts += read_prompts(config.file, system=config.system)
    if config.resume is None and not prompts:
        raise InputError("there is no prompt; give one as an argument, or a file with --file")
    if config.resume is not None and prompts:
        raise InputError("--resume goes on from saved prompts; give no others")
    for path in (config.out, config.save_cache):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent} to write {path.name} into")
    if config.out is not None:
        check_rows_path(config.out)
    _check_packages(config)
    platform = _prepare(config)
    if config.model.is_dir():
        from jaxsr.models.llama.hf_folder import check_folder

        check_folder(config.model)
    elif not config.model.is_file():
        raise MissingFileError(
            f"no model at {config.model}; give a Hugging Face folder or a .gguf file"
        )
    session = _Session(config, load_tokenizer(config.tokenizer or config.model), platform)
    if config.resume is not None:
        session.resume()
    else:
        for batch_size in config.batch_size:
            session.run(prompts, batch_size)
    session.finish()
    return None


def _check_packages(config: GenerateConfig) -> None:
    """Names what is not installed, in one line instead of a traceback."""
    needed = ["tokenizers", *([] if config.raw else ["jinja2"])]
    needed += ["flatbuffers"] if config.engine == "jax" else []
    needed += ["gguf"] if config.model.is_file() else []
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise InputError(
            f"generating needs {', '.join(missing)}, which is not installed; "
            "pip install -e '.[generate]'"
        )


def _prepare(config: GenerateConfig) -> str:
    """Everything global that the run changes, in one place; returns the platform."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if config.platform in ("auto", "cuda"):
            flags = os.environ.get("XLA_FLAGS", "")
            os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()
    import jax

    from jaxsr.interop.mesh import select_platform

    logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    jax.config.update("jax_default_matmul_precision", config.matmul_precision)
    jax.config.update("jax_compilation_cache_dir", str(_compiled(config)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    if config.engine == "jax":
        return select_platform(config.platform, simulated_devices=config.mesh)
    import torch

    select_platform("cpu")
    torch.use_deterministic_algorithms(config.deterministic)
    if config.platform == "cuda" and not torch.cuda.is_available():
        raise InputError("platform cuda is not usable: torch finds no CUDA device; use cpu")
    return "cuda" if config.platform != "cpu" and torch.cuda.is_available() else "cpu"


def _compiled(config: GenerateConfig) -> Path:
    return config.compile_cache or cache_folder() / "compiled"


class _Session:
    """A loaded model and what the run has produced so far."""

    def __init__(self, config: GenerateConfig, tokenizer: Any, platform: str) -> None:
        import torch

        from jaxsr.models.llama.loading import load_model

        begin = time.perf_counter()
        self.config, self.tokenizer = config, tokenizer
        dtype = getattr(torch, config.dtype)
        self.model = load_model(config.model, dtype=dtype, scheme=config.quantize)
        self.engine = self._engine(platform)
        self.load_s = time.perf_counter() - begin
        self.stop_ids = () if config.ignore_eos else self.model.stop_ids
        self.stop_ids += tuple(self._stop_id(text) for text in config.stop)
        chosen = self.model.sampling if config.model_sampling else {}
        self.options = SamplingOptions(
            max_new_tokens=config.max_new_tokens,
            temperature=chosen.get("temperature", config.temperature),
            top_k=chosen.get("top_k", config.top_k) or None,
            top_p=chosen.get("top_p", config.top_p),
            seed=config.seed,
        )
        self.rows: list[dict[str, Any]] = []
        self.last: tuple[Run, list[str]] | None = None

    def _engine(self, platform: str) -> Any:
        if self.config.engine == "torch":
            from jaxsr.generation.torch_decoder import TorchEngine

            return TorchEngine(self.model.network, device=platform)
        from jaxsr.generation.jax_decoder import JaxEngine
        from jaxsr.generation.sharding import tensor_mesh

        return JaxEngine(
            self.model.network,
            mesh=tensor_mesh(self.config.mesh),
            programs=_compiled(self.config) / "traced",
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

    def _ids(self, prompt: "Prompt") -> list[int]:
        if self.config.raw or self.tokenizer.template is None:
            return self.tokenizer.encode(prompt.text)
        return self.tokenizer.encode(self.tokenizer.chat(prompt.messages), raw=False)

    def run(self, prompts: "Sequence[Prompt]", batch_size: int) -> None:
        """Generates from all the prompts at one batch size."""
        from jaxsr.generation.generate_loop import complete

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
        self._note(run, texts, [len(i) for i in ids], batch_size)

    def resume(self) -> None:
        """Goes on from the saved batch."""
        from jaxsr.generation.cache_file import load_snapshot
        from jaxsr.generation.generate_loop import continue_from
        from jaxsr.models.llama.loading import fingerprint

        mark = fingerprint(self.model.network)
        assert self.config.resume is not None
        snapshot, texts = load_snapshot(self.config.resume, fingerprint=mark, model=self.model.name)
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
        self._note(run, texts, counts, len(texts))

    def _printer(self, batch_size: int) -> Callable[[int, list[int]], None] | None:
        alone = batch_size == 1 or self.config.deterministic
        stream = self.config.stream
        if stream == "off" or (stream == "auto" and not (alone and sys.stdout.isatty())):
            return None
        if not alone:
            raise InputError("--stream on prints one output at a time; use --batch-size 1")
        shown: dict[int, tuple[list[int], str]] = {}

        def show(index: int, new: list[int]) -> None:
            if index not in shown and shown:
                print("\n")
            ids, before = shown.get(index, ([], ""))
            ids = ids + new
            # An unfinished character decodes to U+FFFD; it is held back until it is whole.
            text = self.tokenizer.decode([i for i in ids if i not in self.stop_ids])
            text = text.removesuffix("\ufffd") if len(ids) < self.options.max_new_tokens else text
            if text.startswith(before):
                print(text[len(before) :], end="", flush=True)
                before = text
            shown[index] = (ids, before)

        return show

    def _note(self, run: "Run", texts: list[str], counts: list[int], batch_size: int) -> None:
        streamed = self._printer(batch_size) is not None
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

    def _row(self, done: "Completion", text: str, count: int, batch_size: int) -> dict[str, Any]:
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
            "output_ids": " ".join(map(str, done.tokens)),
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
        """Writes what was asked for and sums the run up on stderr."""
        from jaxsr.generation.prompts import write_rows

        config = self.config
        if config.out is not None:
            write_rows(config.out, self.rows)
        if config.save_cache is not None and self.last is not None:
            from jaxsr.generation.cache_file import merged, save_snapshot
            from jaxsr.models.llama.loading import fingerprint

            run, texts = self.last
            save_snapshot(
                config.save_cache,
                merged(run.snapshots),
                fingerprint=fingerprint(self.model.network),
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


if __name__ == "__main__":
    run_program(main, "generate")
