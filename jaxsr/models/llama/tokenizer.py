"""Text to token ids and back, from a Hugging Face folder or a GGUF file, and chat templates.

The `tokenizers` package does the splitting; `transformers` is not needed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError, one_line
from jaxsr.interop.bounded_read import read_bounded
from jaxsr.models.llama.gguf_file import GGUFFile, open_gguf
from jaxsr.models.llama.hf_folder import read_json

# Splitting rules before byte-level BPE, by the name that GGUF files give them; from
# https://github.com/ggml-org/llama.cpp (src/llama-vocab.cpp) and the models' own tokenizer.json.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "llama-bpe": _WORDS + r"\p{N}{1,3}" + _REST,
    "llama3": _WORDS + r"\p{N}{1,3}" + _REST,
    "qwen2": _WORDS + r"\p{N}" + _REST,
}
_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_LARGEST_PRODUCT = 2**24
_CONTROL, _USER_DEFINED = 3, 4


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer with its model's chat template."""

    inner: Any
    """The `tokenizers.Tokenizer`."""
    bos_id: int | None = None
    """Put before a raw prompt where the file asks for it and `inner` does not do it by itself."""
    template: str | None = None
    """Jinja source of the chat template."""
    special: Mapping[str, str] = field(default_factory=dict)
    """Text of the special tokens that templates name: bos_token, eos_token, …"""

    def encode(self, text: str, *, raw: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
          text: the prompt.
          raw: add what the model expects at the start of a text; False for the output of
            `chat`, which has it in it.
        """
        ids = self.inner.encode(text, add_special_tokens=raw).ids
        return [self.bos_id, *ids] if raw and self.bos_id is not None else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out."""
        return self.inner.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The messages as the model was trained to see them, up to where its answer begins.

        Raises:
          ValueError: the model has no chat template, or its template refuses the messages.
        """
        if self.template is None:
            raise InputError("this model has no chat template; use --raw")
        import jinja2

        try:
            return (
                _environment()
                .from_string(self.template)
                .render(messages=list(messages), add_generation_prompt=True, **self.special)
            )
        except jinja2.TemplateError as error:
            raise InputError(f"the model's chat template failed: {one_line(error)}") from error
        except Exception as error:  # a template computes whatever it likes: TypeError, KeyError, …
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise InputError(f"the model's chat template failed ({reason}); use --raw") from error


def load_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer that lies with a model.

    Args:
      path: a Hugging Face folder with tokenizer.json, that file itself, or a GGUF file.

    Raises:
      FileNotFoundError: nothing there.
      ValueError: the file is broken, or its kind is not read.
    """
    path = Path(path)
    if path.is_dir():
        return _from_folder(path, path / "tokenizer.json")
    if path.suffix == ".json" and path.is_file():
        return _from_folder(path.parent, path)
    return _from_gguf(open_gguf(path))


def _from_folder(folder: Path, path: Path) -> Tokenizer:
    import tokenizers

    read_json(path)
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise InputError(f"{path} is not a tokenizer: {error}") from error
    config_path = folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    template = config.get("chat_template")
    beside = folder / "chat_template.jinja"
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    try:
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default")
        if beside.is_file():
            template = read_bounded(beside).decode()
        if not isinstance(template, str | None):
            raise TypeError(f"a chat template that is a {type(template).__name__}")
        tokens = {
            n: v["content"] if isinstance(v, dict) else v for n in names if (v := config.get(n))
        }
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{config_path} or {beside.name} is damaged ({reason})") from error
    return Tokenizer(inner=inner, template=template, special=tokens)


def _from_gguf(file: GGUFFile) -> Tokenizer:
    import tokenizers
    from tokenizers import AddedToken, decoders, models

    kind = file.need("tokenizer.ggml.model")
    if kind != "gpt2":
        raise InputError(
            f"{file.path} has a tokenizer of kind {kind!r}; byte-level BPE ('gpt2') is read. "
            "Give the model's tokenizer.json with --tokenizer"
        )
    texts = file.need("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ", 1)) for m in file.need("tokenizer.ggml.merges")]
    vocab = {text: index for index, text in enumerate(texts)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False))
    inner.pre_tokenizer = _splitter(file)
    inner.decoder = decoders.ByteLevel()
    types = file.fields.get("tokenizer.ggml.token_type", [])
    added = {i: t for i, t in enumerate(types) if t in (_CONTROL, _USER_DEFINED)}
    tokens = [
        AddedToken(texts[i], special=t == _CONTROL, normalized=False) for i, t in added.items()
    ]
    inner.add_tokens([token for token in tokens if not token.special])
    inner.add_special_tokens([token for token in tokens if token.special])
    ids = {n: file.fields.get(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos", "padding")}
    names = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token"}
    return Tokenizer(
        inner=inner,
        bos_id=ids["bos"] if file.fields.get("tokenizer.ggml.add_bos_token") else None,
        template=file.fields.get("tokenizer.chat_template"),
        special={names[n]: texts[i] for n, i in ids.items() if i is not None},
    )


def _splitter(file: GGUFFile) -> Any:
    from tokenizers import Regex, pre_tokenizers

    name = file.fields.get("tokenizer.ggml.pre", "default")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    if name in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[name]), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, bytes_only])
    if name in ("gpt-2", "gpt2"):
        return plain
    raise InputError(
        f"{file.path} splits text by the rule {name!r}, which is not known here; "
        "give the model's tokenizer.json with --tokenizer"
    )


def _environment() -> Any:
    """What templates expect to find, as `transformers` gives it to them; sandboxed."""
    import json

    import jinja2.sandbox
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    class Bounded(ImmutableSandboxedEnvironment):
        """Without products of gigabytes; the sandbox itself bounds `range`."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [len(x) if hasattr(x, "__len__") else abs(x) for x in (left, right)]
            if operator == "**" or math.prod(sizes) > _LARGEST_PRODUCT:
                raise jinja2.sandbox.SecurityError(f"{operator} of {sizes[0]} and {sizes[1]}")
            return super().call_binop(context, operator, left, right)

    environment = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
