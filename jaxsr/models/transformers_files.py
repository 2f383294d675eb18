"""The only place that opens configurations, tokenizers and models with transformers.

Files of a folder may name Python code of their own (`auto_map`). transformers would ask on the
terminal whether to run it, and run it for a `y` on standard input. Here nothing is asked and no
such code is run: a class of transformers' own is used where there is one, else the folder is
refused in one line.
"""

import contextlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError, UserError, one_line, printable
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.install import install_extra
from jaxsr.models.builder_arguments import check_library_arguments, check_library_entry
from jaxsr.models.libraries import import_transformers
from jaxsr.models.thread_patch import one_at_a_time, patched

_CODE = ("auto_map", "custom_generate")
_KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation")
"""Fields that may name a kernel of the hub, which is code."""
_OF_TIMM = ("model_args", "backbone_kwargs")
"""Fields with the arguments of a network that timm builds."""
_OWN_NAME = "name the network yourself: --model timm:NAME --model-options JSON"
_TIMM_NAMES = ("architecture", "backbone")
"""Fields with its name."""


def transformers_library() -> Any:
    """transformers, without its progress bars and warnings.

    Raises:
      InputError: it is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise InputError(
            "this model is computed by transformers' own code, which is not installed; "
            f"{install_extra('generate')}"
        )
    transformers = import_transformers()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return transformers


def config_of(fields: JsonObject) -> Any:
    """transformers' configuration of the fields of a `config.json`.

    Raises:
      InputError: the fields name code, and no family of transformers.
      Exception: whatever the family's checks raise.
    """
    transformers = transformers_library()
    kind = fields.get("model_type")
    if kind not in transformers.CONFIG_MAPPING and "auto_map" in fields:
        raise _refused_code("config.json", fields["auto_map"])
    _check_timm(fields)
    with _fields_alone():
        return transformers.AutoConfig.for_model(**_without_code(fields))


@contextlib.contextmanager
def _fields_alone() -> Iterator[None]:
    """Some families fetch the configuration of a backbone that is named, or open a folder's.

    Raises:
      InputError: one would.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled
    from transformers import PreTrainedConfig

    def refused(*_: Any, **__: Any) -> Any:
        raise InputError(
            "config.json names a backbone by a word alone, which is neither fetched nor opened; "
            "put that network's own fields into backbone_config"
        )

    try:
        with (
            patched(constants, is_offline_mode=lambda: True),
            patched(PreTrainedConfig, get_config_dict=refused),
        ):
            yield
    except OfflineModeIsEnabled:
        refused()


def _without_code(value: Any) -> Any:
    """The fields of a configuration, inner ones among them, without those that name code."""
    if isinstance(value, list):
        return [_without_code(part) for part in value]
    if not isinstance(value, dict):
        return value
    names = [name for name in value if name not in (*_CODE, *_KERNELS)]
    return {name: _without_code(value[name]) for name in names}


def _check_timm(fields: JsonObject) -> None:
    """Refuses entries, also of an inner configuration, by which timm would open or fetch a file."""
    source = Path("config.json")
    inner: list[Any] = [fields]
    for part in inner:
        if isinstance(part, list):
            inner += part
        for name, value in part.items() if isinstance(part, dict) else ():
            if name in _OF_TIMM and isinstance(value, dict):
                check_library_arguments(source, value, way_out=_OWN_NAME)
            if name in _TIMM_NAMES and isinstance(value, str):
                check_library_entry(source, f"timm:{value}", way_out=_OWN_NAME)
            inner.append(value)


def check_field(fields: JsonObject, make: Callable[[JsonObject], object], error: Exception) -> None:
    """Names the field of a `config.json` that is the reason why something cannot be made of it.

    Args:
      fields: of which it could not be made.
      make: makes it.
      error: what `make` raised.

    Raises:
      InputError: without one field it can be made; the message names that.
    """
    for name in fields:
        try:
            make({other: value for other, value in fields.items() if other != name})
        except Exception:  # it lies not at this field, or not at this one alone
            continue
        raise InputError(
            f"config.json has {name} {printable(json.dumps(fields[name]), 80)}, which transformers "
            f"refuses ({type(error).__name__}: {one_line(error):.160}); correct it, or get the file"
            " again"
        ) from error


def check_config(fields: JsonObject) -> None:
    """Refuses the fields of a `config.json` of which transformers makes no configuration.

    Raises:
      InputError: it makes none; the message names the field, if it is one.
    """

    def make(fields: JsonObject) -> object:
        return config_of(fields).to_dict()

    try:
        make(fields)
    except UserError:
        raise
    except Exception as error:  # whatever the family's checks raise
        check_field(fields, make, error)
        raise InputError(
            f"transformers makes no configuration of config.json ({one_line(error):.200}); get the "
            "folder again"
        ) from error


def architecture(config: Any) -> str:
    """The class in transformers that a configuration names; `AutoModel` where it names none."""
    name = next(iter(getattr(config, "architectures", None) or []), None)
    library = transformers_library()
    kind = getattr(library, name, None) if isinstance(name, str) else None
    is_model = isinstance(kind, type) and issubclass(kind, library.PreTrainedModel)
    return str(name) if is_model else "AutoModel"


def model_of(kind: str, config: Any, **options: Any) -> Any:
    """A model with the weights that its own code gives it.

    Args:
      kind: `AutoModel`, `AutoModelForCausalLM`, …
      config: of `config_of`.
      options: of `from_config`.
    """
    with one_at_a_time:
        return getattr(transformers_library(), kind).from_config(
            config, trust_remote_code=False, **options
        )


def model_from_folder(kind: str, folder: Path, fields: JsonObject, **options: Any) -> Any:
    """A model with the safetensors of a folder, see `model_of`; `fields` are its `config.json`."""
    with one_at_a_time:
        return getattr(transformers_library(), kind).from_pretrained(
            str(folder),
            config=config_of(fields),
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            **options,
        )


def tokenizer_from_files(files: Mapping[str, bytes]) -> Any:
    """The tokenizer that transformers makes of a folder with these files alone.

    Args:
      files: contents by name; of `tokenizer_arguments` where these give arguments.

    Raises:
      InputError: the fields name code, and no class of transformers.
      Exception: whatever transformers raises.
    """
    transformers = transformers_library()
    fields = json.loads(files.get("tokenizer_config.json", b"{}"))
    auto_map = fields.get("auto_map")
    if auto_map and not hasattr(transformers, str(fields.get("tokenizer_class"))):
        raise _refused_code("tokenizer_config.json", auto_map)
    with tempfile.TemporaryDirectory(prefix="jaxsr-tokenizer-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )


def tokenizer_arguments(path: Path, fields: JsonObject) -> bytes:
    """The fields of a tokenizer's file that transformers passes to its class.

    Args:
      path: of `tokenizer_config.json` or `special_tokens_map.json`.
      fields: in it.

    Returns:
      The file without the places of files on its maker's machine.

    Raises:
      InputError: a field would have another file opened.
    """
    placeless = {name: value for name, value in fields.items() if name not in _PLACES}
    arguments = {name: value for name, value in placeless.items() if not name.endswith(_TEXTS)}
    way_out = "put the file into the folder, under its usual name, and remove the field"
    check_library_arguments(path, arguments, way_out=way_out, builds="tokenizer")
    return json.dumps(placeless).encode()


_PLACES = (
    "vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file", "added_tokens_file",
    "name_or_path", "_name_or_path", "cache_dir",
)  # fmt: skip
"""Fields that older versions of transformers wrote; it takes the folder's own files."""
_TEXTS = (
    "_token", "_tokens", "added_tokens_decoder", "_template", "_prompt", "_schema", "auto_map",
)  # fmt: skip
"""Ends of the names of fields that no class opens, whatever they say."""


def _refused_code(file: str, auto_map: Any) -> InputError:
    return InputError(
        f"{file} needs code of its own (auto_map: {printable(str(auto_map), 120)}), which is never "
        "run; give a folder of a family that transformers itself has"
    )
