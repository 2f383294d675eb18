"""Builds networks by name; only `pretrained_weights` downloads.

| name | network |
|---|---|
| `package.module:Class`, `package.module:function` | a torch module of the user's |
| `package.module:Task` | the network of a task of `jaxsr.train`, with the options of its run |
| `timm:resnet18`, `torchvision:vit_b_16` | the result of `create_model` or `get_model` |
| `spandrel:SPAN`, `smp:Unet` | a class of spandrel or segmentation_models_pytorch |
| a folder with transformers' `config.json`, or that file | its architecture |
"""

import importlib.machinery
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from jaxsr.errors import InputError, UserError, did_you_mean, first_of, one_line
from jaxsr.interop.out_of_memory import check_fits, free_memory_bytes
from jaxsr.models.claims import check_claims
from jaxsr.models.hub import fetched, is_hub_name
from jaxsr.models.libraries import import_beside_torch, import_library
from jaxsr.models.registry import perturb
from jaxsr.models.transformers_files import architecture, config_of, model_of, transformers_library
from jaxsr.models.user_files import place_of

_SEED = 20261121
CODE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""`package.module:attribute`. Nothing else is imported, so that files can be searched for names."""
PRETRAINED = "pretrained"
"""Stands for the weights that the network's own library names."""
BUILDS_FROM_OPTIONS = "untrained_network"
"""Method of `jaxsr.Task` that builds the trained network."""


def is_class_name(name: str) -> bool:
    """Whether this names a class or a builder's entry, not a file."""
    return ":" in name and not Path(name).exists() and not is_hub_name(name)


def is_configuration(name: str) -> bool:
    """Whether this is a transformers configuration, or a folder with one."""
    return _config_file(name) is not None


def build_network(
    name: str, options: Mapping[str, Any] | None = None, *, option: str = "--model"
) -> nn.Module:
    """The network of that name with the random weights that its own code gives it.

    Args:
      name: see the module's docstring. Modules in the current folder are found.
      options: keyword arguments of the class; for transformers, values of the configuration.
      option: of the command line, for errors: `--model` goes with `--model-options`.

    Returns:
      The network on the CPU, in the mode that its code leaves it in.

    Raises:
      InputError: a module cannot be imported, has no such class, refuses the options, fails, or
        makes something that is not a torch module.
    """
    options = dict(options or {})
    library, _, entry = name.partition(":")
    config = _config_file(name)
    try:
        with _within_memory(f"{option} {name}"):
            if config is not None:
                network = _transformers(config, options)
            elif library in LIBRARIES:
                network = LIBRARIES[library](entry, options)
            else:
                network = _user_class(name, options, option)
    except UserError:
        raise
    except Exception as error:
        raise InputError(
            f"{option} {name} cannot be built: {type(error).__name__}: {one_line(error)} "
            f"({place_of(error)})"
        ) from error
    if not isinstance(network, nn.Module):
        raise InputError(f"{option} {name} made a {type(network).__name__}, not a torch module")
    check_parameters(network, f"{option} {name}")
    return network


@contextmanager
def _within_memory(what: str) -> Generator[None]:
    """Refuses parameters that memory cannot hold, before they get values."""
    free, total = free_memory_bytes(), 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        if parameter is None or is_lazy(parameter) or parameter.device.type == "meta":
            return
        total += parameter.numel() * parameter.element_size()
        if total > free:
            check_fits(total, f"the parameters of {what}", advice="build a smaller network")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def check_parameters(network: nn.Module, what: str) -> None:
    """Refuses networks whose parameters have no values yet, or names that torch.compile gave.

    Args:
      network: as its own code made it.
      what: the user's name of it, for errors.

    Raises:
      InputError: it has a lazy module that was never called, or one that is compiled.
    """
    for path, module in network.named_modules():
        place = f"{what}: {path or 'it'} is a {type(module).__name__}"
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
            raise InputError(
                f"{place}, whose sizes are known after a first call; call the network once on "
                "zeros where it is made"
            )
        if type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod"):
            raise InputError(
                f"{place}, which torch.compile made; leave torch.compile out (the jax engine "
                "compiles all, and --compile does so with the torch engine)"
            )


def build_untrained(name: str, options: Mapping[str, Any] | None = None) -> nn.Module:
    """`build_network` with fixed random weights that hide no operation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = build_network(name, options)
        with torch.no_grad():
            for key, parameter in network.named_parameters():
                perturb(key, parameter)
            for key, buffer in network.named_buffers():
                if key.endswith(("running_mean", "running_var")):
                    perturb(key, buffer)
    return network


def import_attribute(name: str, *, option: str) -> Any:
    """The object that `package.module:attribute` names; modules in the current folder are found.

    Raises:
      InputError: this is not such a name, the module cannot be imported, or it lacks the attribute.
    """
    module_name, _, attribute = name.partition(":")
    if module_name in LIBRARIES or not CODE_NAME.fullmatch(name):
        raise InputError(f"{option} {name} {_misnamed(name)}")
    here = str(Path.cwd())
    is_here = importlib.machinery.PathFinder.find_spec(module_name.partition(".")[0], [here])
    if is_here and not {"", here} & {*sys.path}:  # commands leave it out
        sys.path.insert(0, "")
    try:
        module = import_beside_torch(module_name)
    except SystemExit as error:  # a script that parses arguments, for instance
        raise InputError(
            f"{option} {name}: importing {module_name} ends the program ({place_of(error)}); put "
            'what it runs below `if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        # A module that this one needs may be missing as well.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            way_out = "run where it can be imported, or set PYTHONPATH"
            if module_name.endswith(".py"):
                way_out = _of_file(module_name, attribute)
            raise InputError(
                f"{option} {name}: cannot import {module_name} ({error}); {way_out}"
            ) from error
        place = "" if isinstance(error, SyntaxError) else f" ({place_of(error)})"  # has its own
        raise InputError(
            f"{option} {name}: importing {module_name} failed: {type(error).__name__}: "
            f"{one_line(error)}{place}"
        ) from error
    if not hasattr(module, attribute):
        raise InputError(
            f"{option} {name}: {module_name} has no class or function {attribute!r}"
            + (did_you_mean(attribute, dir(module)) or _classes_of(module))
        )
    return getattr(module, attribute)


def _misnamed(name: str) -> str:
    """The end of a sentence about a name that is not `package.module:attribute`."""
    module, _, attribute = name.partition(":")
    if module in LIBRARIES:
        return "is a network; name it where one is asked for"
    if module.endswith(".py"):
        return f"is a file; {_of_file(module, attribute)}"
    if not attribute:
        return f"names no class; write {module}:Class"
    return (
        "is not package.module:Class, whose parts have letters, digits and _ alone; rename the "
        "file, or import it in another"
    )


def _of_file(module: str, attribute: str) -> str:
    """Advice to someone who names a file of Python."""
    parts = Path(module).with_suffix("").parts
    here = Path(module).is_file() and all(part.isidentifier() for part in parts)
    dotted = ".".join(parts if here else parts[-1:])
    place = "" if here else ", in the file's folder"
    return f"write {dotted}:{attribute or 'Class'}{place}"


def _classes_of(module: ModuleType) -> str:
    """The end of a sentence that names the first classes written there."""
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return f"; it has {', '.join(names[:8])}" if names else ""


def _user_class(name: str, options: Mapping[str, Any], option: str) -> Any:
    make = import_attribute(name, option=option)
    if isinstance(make, nn.Module) or not callable(make):
        raise InputError(
            f"{option} {name} is a {type(make).__name__}, not a class or function; name the class, "
            "or a function that makes one"
        )
    return _call(make, name, options, option)


def _call(make: Callable, name: str, options: Mapping[str, Any], option: str) -> Any:
    if hasattr(make, BUILDS_FROM_OPTIONS):  # a task of `jaxsr.train`, with the options of its run
        return getattr(make, BUILDS_FROM_OPTIONS)(options)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise InputError(
            f"{option} {name} does not take these arguments ({error}); give them as "
            f"{_options_of(option)} '{{\"name\": value}}'"
        ) from error
    return make(**options)


def _options_of(option: str) -> str:
    return {"--network": "--network-args", "--discriminator": "--discriminator-args"}.get(
        option, "--model-options"
    )


def _timm(name: str, options: Mapping[str, Any]) -> nn.Module:
    return import_library("timm").create_model(name, pretrained=False, **options)


def _torchvision(name: str, options: Mapping[str, Any]) -> nn.Module:
    models = import_library("torchvision.models")
    names = ("weights", "weights_backbone")  # neither is downloaded
    accepted = inspect.signature(models.get_model_builder(name)).parameters
    return models.get_model(name, **{n: None for n in names if n in accepted} | dict(options))


def _spandrel(name: str, options: Mapping[str, Any]) -> nn.Module:
    import_library("spandrel")
    architectures = import_library("spandrel.architectures")
    module_name, _, class_name = name.partition(".")
    modules = pkgutil.iter_modules(architectures.__path__)
    known = [module.name for module in modules if not module.name.startswith("_")]
    if module_name not in known:
        raise InputError(
            f"spandrel has no architecture {module_name!r}; there are {first_of(sorted(known), 50)}"
        )
    module = import_library(f"spandrel.architectures.{module_name}")
    return _network_class(module, class_name or module_name, f"spandrel's {module_name}")(**options)


def _smp(name: str, options: Mapping[str, Any]) -> nn.Module:
    library = import_library("segmentation_models_pytorch")
    if not hasattr(library, name):
        known = [n for n, v in vars(library).items() if isinstance(v, type) and n[0].isupper()]
        raise InputError(
            f"segmentation_models_pytorch has no network {name!r}; there are "
            f"{first_of(sorted(known), 50)}"
        )
    network = _network_class(library, name, "segmentation_models_pytorch")
    return network(**{"encoder_weights": None} | dict(options))


def _network_class(module: ModuleType, name: str, library: str) -> Any:
    """A class of networks; libraries also have functions that open files."""
    value = getattr(module, name, None)
    if not (isinstance(value, type) and issubclass(value, nn.Module)):
        raise InputError(f"{library} has {name}, which is not a network" + _classes_of(module))
    return value


def pretrained_weights(name: str, *, option: str) -> Path:
    """The folder or file, from the hub, of the weights that others trained for `timm:NAME`.

    Raises:
      InputError: it is not a network of timm, or timm names no repository for it.
      FileNotFoundError: the hub is not reached, and they are not kept here.
    """
    library, _, entry = name.partition(":")
    if library != "timm":
        raise InputError(
            f"{option} {PRETRAINED} is for timm:NAME, and the network is {name}; give a file, "
            "a folder or ORG/NAME of the hub"
        )
    known = import_library("timm").get_pretrained_cfg(entry)
    if known is None or not known.hf_hub_id:
        raise InputError(
            f"{option} {PRETRAINED}: timm has no weights of {entry} on the hub; give a file, a "
            "folder or ORG/NAME"
        )
    file = f":{known.hf_hub_filename}" if known.hf_hub_filename else ""
    return fetched(f"hf:{known.hf_hub_id}{file}")


LIBRARIES: dict[str, Callable[[str, Mapping[str, Any]], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "spandrel": _spandrel,
    "smp": _smp,
}
"""Who builds `library:NAME`."""


def _config_file(name: str) -> Path | None:
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if path.name != "config.json" and path.suffix != ".json":
        return None
    from jaxsr.models.llama.hf_folder import read_json

    try:
        content = read_json(path)
    except UserError:
        return None
    return path if "model_type" in content else None


def _transformers(path: Path, options: Mapping[str, Any]) -> nn.Module:
    from jaxsr.models.llama.hf_folder import read_config

    fields = read_config(path) | dict(options)
    check_claims(fields, tensors=0, size=None, source=path)
    config = config_of(fields)
    name = architecture(config)
    if name != "AutoModel":
        return getattr(transformers_library(), name)(config)
    return model_of(name, config)
