"""The options of a command as `--help` and the documentation show them: in groups, own ones first.

tyro parses the command's dataclass itself. For the help it gets a view of the dataclass, with the
same names, types and defaults.
"""

import ast
import dataclasses
import inspect
import textwrap
from typing import Annotated, Any, get_type_hints

from jaxsr.interop.train.options import OptimizerConfig
from jaxsr.runtime.options import AotOptions, ComputeOptions, ModelOptions

GROUPS = {
    "model": (*inspect.get_annotations(ModelOptions), "network", "network_args"),
    "data": (
        "data", "val", "held_out", "val_split", "lists", "mask_threshold", "on_bad_file", "shuffle",
        "workers", "prefetch", "cache", "cache_gb", "scratch", "resident_gb",
    ),
    "optimisation": (
        *inspect.get_annotations(OptimizerConfig), "lr_batch", "ema", "accumulate", "batch_norm",
        "init", "freeze", "lr_factor",
    ),
    "device": (
        *inspect.get_annotations(ComputeOptions), "lane_folding", "remat", "deterministic",
        "compile",
    ),
    "output": (
        "out", "resume", "branch_from", "log_every", "validate_every", "save_every", "tensorboard",
        "logger", "profile",
    ),
    "ahead-of-time": tuple(inspect.get_annotations(AotOptions)),
}  # fmt: skip
"""Options by the title of their group; all others are the command's own, and come first.

Classes whose options are all of one kind are listed whole: new options of theirs join the group.
"""


def grouped_fields(kind: type) -> dict[str, list[dataclasses.Field]]:
    """Groups the fields of a dataclass by title; its own are under `""`, the most special first."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    groups = {
        title: [fields.pop(name) for name in names if _is_option(kind, fields.get(name))]
        for title, names in GROUPS.items()
    }
    # If a class only changes a default, the option still belongs to its base.
    rank = {
        name: n for n, base in enumerate(kind.__mro__) for name in inspect.get_annotations(base)
    }
    special = sorted(fields.values(), key=lambda field: rank[field.name])
    return {"": special} | {title: members for title, members in groups.items() if members}


def _is_option(kind: type, field: dataclasses.Field | None) -> bool:
    """Whether a field is a single option: a dataclass has a group of its own."""
    return field is not None and not dataclasses.is_dataclass(get_type_hints(kind)[field.name])


def field_texts(kind: type) -> dict[str, str]:
    """Returns the text under each field of a dataclass, including its bases, as one paragraph."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # a class that was typed at a prompt: its options have no
            # texts
            continue
        assert isinstance(tree, ast.ClassDef)
        for statement, following in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                match following:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        texts[statement.target.id] = " ".join(text.split())
    return texts


def is_positional(kind: type, name: str) -> bool:
    """Whether a field is a word of the command line without a name."""
    import tyro

    declared = get_type_hints(kind, include_extras=True)[name]
    return tyro.conf.Positional in getattr(declared, "__metadata__", ())


def help_view(kind: type, default: Any = None, *, first: type | None = None) -> type:
    """Returns a dataclass whose help tyro draws with a box for each group.

    Args:
      kind: the command's dataclass.
      default: an object of it with the defaults. Default: those of the class.
      first: a dataclass of further options, which come first, under its name in lower case.
    """
    import tyro

    texts, types = field_texts(kind), get_type_hints(kind, include_extras=True)

    def entry(field: dataclasses.Field) -> tuple[str, Any, Any]:
        value = field.default if default is None else getattr(default, field.name)
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if dataclasses.is_dataclass(value):
            nested: Any = help_view(type(value), value)
            return field.name, nested, dataclasses.field(default_factory=nested)
        shown = tyro.conf.arg(help=texts.get(field.name), help_behavior_hint=_default_hint)
        return field.name, Annotated[types[field.name], shown], dataclasses.field(default=value)

    def box(title: str, group: Any) -> tuple[str, Any, Any]:
        group.__doc__ = ""
        shown = Annotated[group, tyro.conf.arg(name=title), tyro.conf.OmitArgPrefixes]
        required = any(f.default is dataclasses.MISSING for f in dataclasses.fields(group))
        default = dataclasses.field() if required else dataclasses.field(default_factory=group)
        return f"group_{group.__name__}", shown, default

    groups = grouped_fields(kind)
    entries = [entry(field) for field in groups.pop("")]
    if first is not None:
        entries.insert(0, box(first.__name__.lower(), help_view(first)))
    for title, fields in groups.items():
        name = title.replace("-", "_")
        entries.append(
            box(title, dataclasses.make_dataclass(name, map(entry, fields), kw_only=True))
        )
    view = dataclasses.make_dataclass(kind.__name__, entries, kw_only=True)
    view.__doc__ = kind.__doc__
    return view


def _default_hint(default: str) -> str:
    return "" if default in ("", "None", "''", "False") else f"(default: {default})"
