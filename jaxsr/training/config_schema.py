"""A JSON Schema of a task's options, with which editors complete and check configuration files."""

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxsr.field_values import takes_json
from jaxsr.interop.annotations import JsonObject
from jaxsr.runtime.help_page import field_texts
from jaxsr.training.config import RunConfig
from jaxsr.training.config_file import NOT_INHERITED, to_json

_TYPES = {bool: "boolean", int: "integer", float: "number", Path: "string"}
_BOUNDS = {
    "least": "minimum",
    "most": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
}


def config_schema(family: str, presets: Mapping[str, RunConfig], default: str) -> JsonObject:
    """Returns the schema of hand-written files for `--config`.

    Args:
      family: the task's name.
      presets: those of the task, by name.
      default: name of the preset whose values the schema shows as defaults.
    """
    config = presets[default]
    options = to_json(family, config)["options"]
    schema = _object(type(config), {n: v for n, v in options.items() if n not in NOT_INHERITED})
    named = {
        "family": {"const": family, "description": "The task."},
        "preset": {
            "enum": [*presets],
            "default": default,
            "description": "The set of values that the other entries change.",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"jaxsr train {family}",
        **schema,
        "properties": named | schema["properties"],
        "required": ["family"],
    }


def _object(kind: type, defaults: Mapping[str, Any]) -> JsonObject:
    """Returns the schema of a dataclass."""
    declared, texts = get_type_hints(kind), field_texts(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name in defaults}
    properties = {}
    for name, field in fields.items():
        text = {"description": texts[name]} if name in texts else {}
        properties[name] = _value(declared[name], field, defaults[name]) | text
        if "properties" not in properties[name]:
            properties[name]["default"] = defaults[name]
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value(kind: Any, field: dataclasses.Field, default: Any) -> JsonObject:
    """Returns the schema of a field's values."""
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return _object(kind, default)
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if get_origin(kind) in (Union, types.UnionType):
        return {"anyOf": [_value(each, field, default) for each in get_args(kind)]}
    if get_origin(kind) is list:
        return {"type": "array", "items": _value(get_args(kind)[0], field, default)}
    if get_origin(kind) is tuple:
        items = get_args(kind)
        if items[1:] == (...,):
            return {"type": "array", "items": _value(items[0], field, default)}
        inner = [_value(each, field, default) for each in items]
        return {"type": "array", "prefixItems": inner, "minItems": len(inner), "items": False}
    if kind is type(None):
        return {"type": "null"}
    bounds = field.metadata.get("bounds", {}) if kind in (int, float) else {}
    if kind is str:  # `mesh: 8` is one
        more = ["object"] if takes_json(field.name) else []
        rule = {name: field.metadata[name] for name in ("pattern",) if name in field.metadata}
        return {"type": ["string", "integer", *more]} | rule
    if kind not in _TYPES:  # raised by a user's class
        return {}
    return {"type": _TYPES[kind]} | {_BOUNDS[rule]: bound for rule, bound in bounds.items()}
