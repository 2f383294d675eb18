"""Text to token ids and back, from a Hugging Face folder or a GGUF file, and chat templates.

The `tokenizers` package does the splitting. Where transformers is installed, its `AutoTokenizer`
says how a folder's files make a tokenizer; GGUF files are read here.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError, MissingFileError, UserError, one_line
from jaxsr.folders import cache_folder
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.bounded_read import CONFIGURATION, MOST_BYTES, read_bounded
from jaxsr.interop.sealed_json import seal, unseal
from jaxsr.models.gguf_names import find_gguf
from jaxsr.models.hub import fetched
from jaxsr.models.llama import gguf_tokenizer
from jaxsr.models.llama.chat_renderer import Renderer, TemplateFailure
from jaxsr.models.llama.gguf_file import GGUFFile, open_gguf
from jaxsr.models.llama.hf_folder import read_json
from jaxsr.models.llama.tokenizer_growth import check_growth

_LOG = logging.getLogger(__name__)

_SPECIAL = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
    "additional_special_tokens",
)
"""Special tokens that chat templates may name."""
_FILES = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "added_tokens.json",
)
"""Files from which transformers makes a tokenizer."""
_OLDER = ("tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "vocab.txt")
"""Files that held a tokenizer before tokenizer.json."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer with its model's chat template."""

    inner: Any
    """The `tokenizers.Tokenizer`."""
    template: str | None = None
    """Jinja source of the chat template."""
    tool_template: str | None = None
    """That of chats with tools, where the model has one for them."""
    special: Mapping[str, Any] = field(default_factory=dict)
    """Text of the special tokens that templates name: bos_token, eos_token, …"""

    def encode(self, text: str, *, raw: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
          text: the prompt.
          raw: add the tokens that the model expects at the start of a text; False for the output of
            `chat`, which has it in it.
        """
        with _errors_of("the model's tokenizer cannot split a text"):
            return self.inner.encode(text, add_special_tokens=raw).ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of the ids, with or without special tokens."""
        with _errors_of("the model's tokenizer cannot join tokens"):
            return self.inner.decode(list(ids), skip_special_tokens=not special)

    @functools.cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of all that `decode` depends on."""
        content = json.loads(self.inner.to_str())
        vocabulary = content["model"].get("vocab")
        if isinstance(vocabulary, list):  # with scores, which differ after a file in the last bits
            vocabulary = [token for token, _ in vocabulary]
        parts = vocabulary, content["added_tokens"], content["decoder"]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
    ) -> str:
        """The messages as the model was trained to see them, up to where its answer begins.

        Args:
          messages: role, content, and other keys that the template may read.
          tools: descriptions of functions, for templates that know them.
          documents: texts to answer from, for templates that know them.

        Raises:
          ValueError: the model has no chat template, or its template refuses the messages.
        """
        if self.template is None:
            raise InputError("this model has no chat template; use --raw")
        try:
            template = self.template if tools is None else self.tool_template or self.template
            variables = {**self.special, "tools": tools, "documents": documents}
            return self._renderer.render(
                template, [_with_reasoning(m) for m in messages], variables
            )
        except TemplateFailure as error:
            raise InputError(f"the model's chat template failed: {one_line(error)}") from error

    @functools.cached_property
    def _renderer(self) -> Renderer:
        return Renderer()


def load_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer that lies with a model.

    Args:
      path: a Hugging Face folder with tokenizer.json, that file itself, or a GGUF file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is broken, or its kind is not read.
    """
    path = fetched(path)
    if not (path / "tokenizer.json").is_file():
        path = find_gguf(path)
    if path.is_dir():
        return _from_folder(path, path / "tokenizer.json")
    if path.suffix == ".json" and path.is_file():
        return _from_folder(path.parent, path)
    return _from_gguf(open_gguf(path))


def _from_gguf(file: GGUFFile) -> Tokenizer:
    inner = gguf_tokenizer.build(file)
    template = file.fields.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise InputError(
            f"{file.path} has a tokenizer.chat_template that is not text; use --raw, or --tokenizer"
        )
    special = gguf_tokenizer.special_tokens(file)
    return Tokenizer(inner=inner, template=template, special=special)


def _from_folder(folder: Path, path: Path) -> Tokenizer:
    config_path = folder / "tokenizer_config.json"
    config = _listing_tokens(config_path) if config_path.is_file() else {}
    beside = folder / "chat_template.jinja"
    for_tools = folder / "additional_chat_templates" / "tool_use.jinja"
    map_path = folder / "special_tokens_map.json"
    older = _listing_tokens(map_path) if map_path.is_file() else {}
    try:
        stated = config.get("chat_template")
        is_list = isinstance(stated, list)
        named = {e["name"]: e["template"] for e in stated} if is_list else {"default": stated}
        named |= {
            name: read_bounded(file, most_bytes=CONFIGURATION).decode()
            for name, file in (("default", beside), ("tool_use", for_tools))
            if file.is_file()
        }
        templates = named.get("default"), named.get("tool_use")
        for template in templates:
            if not isinstance(template, str | None):
                raise TypeError(f"a chat template that is a {type(template).__name__}")
        named = {name: config.get(name) or older.get(name) for name in _SPECIAL}
        extra = config.get("extra_special_tokens") or older.get("extra_special_tokens")
        named |= extra if isinstance(extra, dict) else {}
        special = {name: _text(value) for name, value in named.items() if value}
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{config_path} or {beside.name} is damaged ({reason})") from error
    inner, of_class = _inner(folder, path)
    return Tokenizer(
        inner=inner,
        template=templates[0],
        tool_template=templates[1],
        special={**special, **of_class},
    )


_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; templates read the first, those of gpt-oss the second."""


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its reasoning under the names that templates read, as transformers does."""
    for name in _REASONING:
        if (reasoning := message.get(name)) is not None:
            return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _listing_tokens(path: Path) -> JsonObject:
    """A JSON file that may describe each token; those of speech are tens of thousands."""
    return read_json(path, most_bytes=MOST_BYTES)


def _text(token: Any) -> Any:
    """A special token's text, or the texts of several."""
    if isinstance(token, list):
        return [_text(one) for one in token]
    return token["content"] if isinstance(token, dict) else token


def _inner(folder: Path, path: Path) -> tuple[Any, Mapping[str, str]]:
    """The `tokenizers.Tokenizer` that transformers makes of the folder, or that of the file alone.

    Beside it the texts of the special tokens that transformers' class has, its own ones included.

    transformers adds tokens that only tokenizer_config.json has, and some of its classes build
    their own in the place of the file's. Importing it takes longer than all else of a start, so the
    result is stored in the cache folder.
    """
    config_path = folder / "tokenizer_config.json"
    config = _listing_tokens(config_path) if config_path.is_file() else {}
    if not path.is_file() and not any((folder / name).is_file() for name in _OLDER):
        raise MissingFileError(
            f"{folder} has no tokenizer.json; get it from where the model came from, or give "
            "--tokenizer a folder that has one"
        )
    if path.is_file():
        is_installed = importlib.util.find_spec("transformers") is not None
        if path.name != "tokenizer.json" or "auto_map" in config or not is_installed:
            return _read(path), {}
    files = _files(folder)
    entry = cache_folder() / "tokenizers" / f"{_digest(files)}.json"
    if stored := _stored(entry, path):
        return stored
    of_file = _read(path) if path.is_file() else None
    inner, special = _made_by_transformers(folder, files)
    made = inner.to_str()
    same = of_file is not None and of_file.to_str() == made
    if not same:
        check_growth(inner, json.loads(made), folder)
    _store(
        entry,
        {
            "tokenizer": None if same else made,
            "encode_special_tokens": inner.encode_special_tokens,
            "special": special,
        },
    )
    return inner, special


def _files(folder: Path) -> dict[str, bytes]:
    """The files that transformers reads, so that it opens no other."""
    from jaxsr.models.transformers_files import tokenizer_arguments

    names = [name for name in (*_FILES, *_OLDER) if (folder / name).is_file()]
    files = {name: read_bounded(folder / name) for name in names}
    for name in {"tokenizer_config.json", "special_tokens_map.json"} & files.keys():
        files[name] = tokenizer_arguments(folder / name, _listing_tokens(folder / name))
    return files


def _read(path: Path) -> Any:
    """A tokenizer.json, without truncation and padding of whoever called it before it was saved."""
    import tokenizers

    content = _listing_tokens(path)
    with _errors_of(f"{path} is not a tokenizer"):
        inner = _plain(tokenizers.Tokenizer.from_file(str(path)))
    check_growth(inner, content, path)
    return inner


@contextlib.contextmanager
def _errors_of(what: str) -> Iterator[None]:
    """Errors of the `tokenizers` package become one line."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # bare Exception, or a panic of Rust
        raise InputError(
            f"{what} ({one_line(error):.200}); get it again, or give another with --tokenizer"
        ) from error


def _plain(inner: Any) -> Any:
    inner.no_truncation()
    inner.no_padding()
    return inner


def _made_by_transformers(
    folder: Path, files: Mapping[str, bytes]
) -> tuple[Any, Mapping[str, str]]:
    from jaxsr.models.transformers_files import check_config, tokenizer_from_files

    try:
        made = tokenizer_from_files(files)
        special = {n: v for n, v in made.special_tokens_map.items() if isinstance(v, str)}
        return _plain(made.backend_tokenizer), special
    except UserError:
        raise
    except Exception as error:  # whatever a file that is missing or damaged raises
        if "config.json" in files:  # which transformers reads to find the class
            check_config(read_json(folder / "config.json"))
        older = [name for name in _OLDER if name in files]
        if "tokenizer.json" in files:
            lacks, of_files = f"{folder} has tokenizer.json", "it"
        else:
            lacks, of_files = f"{folder} has no tokenizer.json", ", ".join(older)
        needs = "; install sentencepiece" if older and older[0].endswith(".model") else ""
        raise InputError(
            f"{lacks}, and transformers makes none of {of_files} "
            f"({one_line(error):.200}){needs}, or give --tokenizer a folder that has one"
        ) from error


def _digest(files: Mapping[str, bytes]) -> str:
    """Tells apart the files that transformers reads, and its versions."""
    digest = hashlib.sha256(b"with special tokens")  # which 0.3.0's lack
    for name, content in files.items():
        digest.update(name.encode() + b"\0" + content + b"\0")
    for package in ("transformers", "tokenizers"):
        digest.update(importlib.metadata.version(package).encode() + b"\0")
    return digest.hexdigest()[:32]


def _stored(entry: Path, path: Path) -> tuple[Any, Mapping[str, str]] | None:
    """The result of `_inner`, as `_store` wrote it; None where nothing is, or it is damaged."""
    import tokenizers

    try:
        content = unseal(read_bounded(entry), source=entry)
    except FileNotFoundError:
        return None
    except (UserError, OSError) as error:
        _LOG.warning("%s; the tokenizer is made again", one_line(error))
        return None
    text = content["tokenizer"]
    inner = _read(path) if text is None else tokenizers.Tokenizer.from_str(text)
    inner.encode_special_tokens = content["encode_special_tokens"]
    return inner, content["special"]


def _store(entry: Path, content: JsonObject) -> None:
    """Writes the tokenizer from transformers; its text None stands for tokenizer.json itself."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(entry, seal(content).encode())
    except OSError as error:
        _LOG.warning("the tokenizer is not stored in %s: %s", entry.parent, one_line(error))
