"""Prompts in from files, rows out to files.

A text file has one prompt per line. A JSONL file has one object per line with `prompt`, `text`, or
`messages` (or `conversations`) of a chat data set.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxsr.data.input_files import special_kind
from jaxsr.errors import InputError, MissingFileError, first_of, one_line
from jaxsr.interop.json_text import parse_json

Message = Mapping[str, Any]
"""Role, content, and other keys that chat templates read: reasoning_content, tool_calls."""

_PROMPTS = ("prompt", "text", "messages", "conversations")
_OTHERS = ("seed", "tools", "documents", "id")
"""Further keys of a line. `id` is the only ignored column of a chat data set."""

_ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt as text, and as the messages of a chat."""

    text: str
    """The text for reports: the prompt, or the last user message."""
    messages: tuple[Message, ...]
    """For the chat template."""
    seed: int | None = None
    """Seed of its random draws; None for the command's."""
    tools: Sequence[Any] | None = None
    """Descriptions of functions, for the chat template."""
    documents: Sequence[Any] | None = None
    """Texts to answer from, for the chat template."""

    def __post_init__(self) -> None:
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"a prompt is not UTF-8 text: {error}") from error

    @classmethod
    def of(cls, text: str, *, system: str | None = None) -> "Prompt":
        before = ({"role": "system", "content": system},) if system else ()
        return cls(text=text, messages=(*before, {"role": "user", "content": text}))


def all_prompts(texts: Sequence[str], path: Path | None, *, system: str | None) -> list[Prompt]:
    """The prompts that a command names: texts, then the lines of a file.

    Raises:
      FileNotFoundError, ValueError: a text is empty, or see `read_prompts`.
    """
    for index, text in enumerate(texts):
        if not text:
            raise InputError(f"prompt {index} is empty; give it some text")
    prompts = [Prompt.of(text, system=system) for text in texts]
    return prompts + (read_prompts(path, system=system) if path is not None else [])


def read_prompts(path: Path, *, system: str | None = None) -> list[Prompt]:
    """The prompts of a .txt or .jsonl file, or of a pipe; blank lines are skipped.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line is not valid UTF-8, not JSON, or holds no prompt; the line is named.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFileError(f"no prompt file at {path}")
    if not (path.is_file() or _is_piped(path)):
        kind = "a folder" if path.is_dir() else special_kind(path)
        raise InputError(f"{path} is {kind}; give a file of prompts")
    ending = path.suffix.lower()
    if ending == ".json":
        raise InputError(f"{path} is JSON; give a .jsonl file, with one object or text a line")
    prompts = []
    for number, raw in enumerate(path.read_bytes().splitlines(), 1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path} line {number} is not valid UTF-8 (byte {error.start}: "
                f"0x{raw[error.start]:02x}); save the file as UTF-8"
            ) from error
        if not line.strip():
            continue
        if ending in (".jsonl", ".ndjson"):
            prompts.append(_from_json(line, f"{path} line {number}", system))
        else:
            prompts.append(Prompt.of(line, system=system))
    if not prompts:
        raise InputError(f"{path} holds no prompt")
    return prompts


def _is_piped(path: Path) -> bool:
    """Whether it is a pipe that this command was started with, as of `--prompts <(command)`."""
    is_own = path.parent in (Path("/dev/fd"), Path("/proc/self/fd")) or path == Path("/dev/stdin")
    return is_own and path.is_fifo()


def _from_json(line: str, where: str, system: str | None) -> Prompt:
    try:
        value = parse_json(line)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is not text
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {one_line(error)}") from error
    if isinstance(value, str):
        return _checked(value, where, system)
    if not isinstance(value, dict):
        raise InputError(f"{where} must be an object or a string, got {type(value).__name__}")
    seed = value.get("seed")
    if seed is not None and (type(seed) is not int or not -(2**31) <= seed < 2**31):
        raise InputError(f"{where} must have a whole number of 32 bits as seed, got {seed!r}")
    names = [name for name in _PROMPTS if name in value]
    if names[1:]:
        raise InputError(f"{where} has {' and '.join(names)}; leave all but one out")
    if not names:
        raise InputError(f"{where} has none of prompt, text, messages; it has {', '.join(value)}")
    if unknown := [key for key in value if key not in (*_PROMPTS, *_OTHERS)]:
        raise InputError(
            f"{where} has {first_of(unknown, 4)}, which generate does not read; take that out, and "
            "give options such as --temperature and --max-new-tokens to the command"
        )
    more = {key: value.get(key) for key in ("tools", "documents")}
    for key, entries in more.items():
        if not (entries is None or isinstance(entries, list)):
            raise InputError(f"{where} must have a list as {key}, got {type(entries).__name__}")
    (name,) = names
    read = _checked if name in ("prompt", "text") else _chat
    return replace(read(value[name], where, system), seed=seed, **more)


def _checked(text: Any, where: str, system: str | None) -> Prompt:
    if not isinstance(text, str) or not text:
        raise InputError(f"{where} has an empty prompt, or one that is not text")
    return Prompt.of(text, system=system)


def _chat(value: Any, where: str, system: str | None) -> Prompt:
    messages = []
    if not isinstance(value, list):
        raise InputError(f"{where} must hold a list of messages, got {type(value).__name__}")
    for item in value:
        entry = item if isinstance(item, dict) else {}
        role, content = (
            entry.get("role", entry.get("from")),
            entry.get("content", entry.get("value")),
        )
        if isinstance(content, list):
            content = _joined(content, where)
        if not isinstance(role, str) or not (
            isinstance(content, str) or (content is None and entry.get("tool_calls"))
        ):
            raise InputError(f"{where} has a message without role and content as text")
        others = {k: v for k, v in entry.items() if k not in ("from", "value")}
        messages.append({**others, "role": _ROLES.get(role, role), "content": content})
    # An answer in the data set is the text to be generated.
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise InputError(f"{where} has no message to answer")
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return Prompt(text=messages[-1]["content"] or "", messages=tuple(messages))


def _joined(parts: list[Any], where: str) -> str:
    """The text of content in parts, as OpenAI's interface takes it."""
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    kinds = {part.get("type", "text") for part in parts if isinstance(part, dict)}
    if len(texts) < len(parts) or kinds - {"text"} or not all(isinstance(t, str) for t in texts):
        raise InputError(
            f"{where} has content in parts that are not all text; language models here read text "
            "alone"
        )
    return "".join(str(text) for text in texts)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as .jsonl or .csv, complete or not at all."""
    from jaxsr.interop.atomic_write import atomic_write

    text = io.StringIO(newline="")
    if path.suffix == ".jsonl":
        text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        for row in rows:  # a list as its entries, spaces between
            lists = {n: _cell(v) for n, v in row.items() if isinstance(v, list)}
            table.writerow({**row, **lists})
    atomic_write(path, text.getvalue().encode())


def _cell(values: list[Any]) -> str:
    if any(isinstance(value, dict) for value in values):
        return json.dumps(values, ensure_ascii=False)
    return " ".join(map(str, values))


def check_rows_path(path: Path, *, continues: bool) -> None:
    """Refuses a path of rows before hours of work go into them.

    Args:
      path: of the file.
      continues: whether rows are added to those that are there.

    Raises:
      ValueError: its suffix is neither .jsonl nor .csv, its folder is missing, or the rows would
        replace others.
    """
    if path.suffix not in (".jsonl", ".csv"):
        raise InputError(f"out must end in .jsonl or .csv, got {path}")
    if not path.parent.is_dir():
        raise InputError(f"out is {path}, but there is no folder {path.parent}")
    if not continues and path.is_file() and path.stat().st_size:
        raise InputError(f"out is {path}, which has content; name another file, or remove it")
