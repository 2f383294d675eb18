"""Writes pages of the reference: of commands from their options, of `jaxsr.ops` by subject."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxsr.__main__ import COMMANDS
from jaxsr.runtime.completion import OPTIONS, load_options
from jaxsr.runtime.help_page import field_texts, grouped_fields, is_positional
from jaxsr.training.cli_options import Preset
from jaxsr.training.find_task import TASKS, find_options

TITLES = {
    "": "Options of its own",
    "ahead-of-time": "Compiling ahead of time",
    "device": "Where and how it computes",
}


def write_commands(folder: Path) -> None:
    """One page for each command, `train.md` and so on."""
    folder.mkdir(exist_ok=True)
    for command, purpose in COMMANDS.items():
        lines = [f"# {command}", "", f"`python -m jaxsr.{command}`: {purpose}."]
        if command == "train":
            lines += _training()
        else:
            parts = [words for words in OPTIONS if words.split()[0] == command]
            for words in parts:
                level = "##" if len(parts) == 1 else "###"
                lines += [] if len(parts) == 1 else ["", f"## {words}"]
                lines += _page(load_options(words), level)
        (folder / f"{command}.md").write_text("\n".join(lines) + "\n")


def write_ops(folder: Path) -> None:
    """The page of `jaxsr.ops`: a section for each subject, which is a module."""
    from jaxsr import ops

    folder.mkdir(exist_ok=True)
    subjects: dict[str, list[str]] = {}
    for name in sorted(ops.__all__, key=str.lower):
        home = getattr(ops, name).__module__
        home = "jaxsr.ops.augment" if "._augment." in home else home
        subjects.setdefault(home, []).append(name)
    lines = ["# `jaxsr.ops`", "", *inspect.cleandoc(ops.__doc__ or "").splitlines()]
    for module, names in sorted(subjects.items(), key=lambda item: item[0].split(".")[-1]):
        title = module.split(".")[-1].strip("_").replace("_", " ").capitalize()
        about = inspect.cleandoc(import_module(module).__doc__ or "").split("\n\n")[0]
        lines += ["", f"## {title}", "", about, "", "```{eval-rst}"]
        for name in names:
            kind = "class" if inspect.isclass(getattr(ops, name)) else "function"
            lines += [f".. auto{kind}:: jaxsr.ops.{name}"]
            lines += ["   :members:"] if kind == "class" else []
            lines += [""]
        lines += ["```"]
    (folder / "ops.md").write_text("\n".join(lines) + "\n")


def _page(kind: type, level: str) -> Iterator[str]:
    yield from ("", *inspect.cleandoc(kind.__doc__ or "").splitlines())
    for title, fields in grouped_fields(kind).items():
        if fields:
            heading = TITLES.get(title, title.capitalize())
            yield from ("", f"{level} {heading}", "", *_table(kind, fields))


def _training() -> Iterator[str]:
    kinds = {name: find_options(name).Config for name in TASKS}
    common = set.intersection(*({f.name for f in dataclasses.fields(k)} for k in kinds.values()))
    yield from (
        "",
        "The first word is the task; fast-srgan is the default. The options of each task",
    )
    yield "come first, then those that all tasks have. A preset changes some of these defaults;"
    yield "`python -m jaxsr.train TASK --preset NAME --help` shows its own."
    yield from ("", *_table(Preset, list(dataclasses.fields(Preset))))
    for name, kind in kinds.items():
        presets = ", ".join(f"`{preset}`" for preset in find_options(name).presets)
        yield from ("", f"## {name}", "", f"{kind.__doc__} Presets: {presets}.", "")
        fields = [f for group in grouped_fields(kind).values() for f in group]
        yield from _table(kind, [f for f in fields if f.name not in common])
    kind = next(iter(kinds.values()))
    for title, fields in grouped_fields(kind).items():
        if shared := [f for f in fields if f.name in common]:
            heading = "All tasks" if not title else TITLES.get(title, title.capitalize())
            yield from ("", f"## {heading}", "", *_table(kind, shared))


def _table(kind: type, fields: list[dataclasses.Field], prefix: str = "--") -> Iterator[str]:
    if prefix == "--":
        yield from ("| option | meaning | values | default |", "|---|---|---|---|")
    texts, types = field_texts(kind), get_type_hints(kind)
    for field in fields:
        declared, name = types[field.name], prefix + field.name.replace("_", "-")
        if isinstance(declared, type) and dataclasses.is_dataclass(declared):
            yield from _table(declared, list(dataclasses.fields(declared)), f"{name}.")
            continue
        if is_positional(kind, field.name):
            name = field.name.upper()
        text = re.sub(r"([|*_])", r"\\\1", texts.get(field.name, ""))
        yield f"| `{name}` | {text} | {_values(declared)} | {_default(field)} |"


def _values(declared: Any) -> str:
    """The type in a reader's words."""
    if get_origin(declared) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(declared))
    words = {int: "whole number", float: "number", str: "text", bool: "", Path: "path"}
    if declared in words:
        return words[declared]
    kinds = [kind for kind in get_args(declared) if kind not in (type(None), Ellipsis)]
    if get_origin(declared) is tuple:
        if Ellipsis not in get_args(declared):
            return f"{len(kinds)} {'paths' if Path in kinds else 'numbers'}"
        one = _values(kinds[0])
        return f"some of {one}" if "`" in one else f"{one}s"
    return " or ".join(map(_values, kinds))


def _default(field: dataclasses.Field) -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return "" if field.default_factory is not dataclasses.MISSING else "needed"
    if value in (None, (), ""):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"`{shown}`"
