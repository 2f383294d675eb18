"""Digests of networks; remembers how far they see, in the process and in the user's cache folder.

Networks are told apart by their architecture: the source of their classes, the numbers and words in
their submodules' attributes, names and shapes of parameters. Weights do not count.
"""

import hashlib
import inspect
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from jaxsr.errors import UserError, one_line
from jaxsr.folders import cache_folder
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.bounded_read import read_bounded
from jaxsr.interop.sealed_json import seal, unseal
from jaxsr.restoration.receptive_field import Reach, measure_reach
from jaxsr.runtime.source_digest import source_digest

log = logging.getLogger(__name__)

_KNOWN: dict[str, Reach] = {}
_PLAIN = (bool, int, float, str, type(None))


def remembered_reach(
    network: nn.Module, *, channels: int, least_side: int = 1, side_multiple: int = 1
) -> Reach:
    """`measure_reach`, once for each architecture."""
    sides = {"least_side": least_side, "side_multiple": side_multiple}
    digest = architecture_digest(network, f"{channels} {sides}")
    if digest not in _KNOWN:
        path = cache_folder() / "reach" / f"{digest}.json"
        _KNOWN[digest] = _read(path) or _write(
            path, measure_reach(network, channels=channels, **sides)
        )
    return _KNOWN[digest]


def architecture_digest(network: nn.Module, *further: str) -> str:
    """Tells networks apart whose weights do not matter; 64 hexadecimal digits.

    Args:
      network: the module.
      further: other values that count.
    """
    versions = (version("torch"), source_digest("jaxsr.restoration"))
    return _joined((*versions, *further, *_parts(network)))


def network_digest(network: nn.Module, *further: str) -> str:
    """`architecture_digest` with the weights' values, alike in every version of jaxsr and torch."""
    return _joined((*further, *_parts(network), *map(tensor_digest, network.state_dict().values())))


def tensor_digest(tensor: torch.Tensor) -> str:
    """Tells values of a tensor apart."""
    form = f"{tensor.dtype} {tuple(tensor.shape)}"
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return f"{form} {id(tensor)} {tensor._version}"
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return f"{form} {hashlib.sha256(plain.view(torch.uint8).numpy().data).hexdigest()}"


def _joined(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


def _parts(network: nn.Module) -> Iterator[str]:
    sources: dict[str, str] = {}
    for name, module in network.named_modules():
        kind = type(module)
        if kind.__module__ not in sources:
            sources[kind.__module__] = _source(kind)
            yield sources[kind.__module__]
        plain = {n: v for n, v in vars(module).items() if _is_plain(v) and n != "training"}
        yield f"{name} {kind.__module__}.{kind.__qualname__} {sorted(plain.items())!r}"
        yield module.extra_repr()
    for name, tensor in network.state_dict(keep_vars=True).items():
        yield f"{name} {tuple(tensor.shape)}"


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _source(kind: type) -> str:
    """Source of the module that defines a class; empty where it has no file."""
    module = sys.modules.get(kind.__module__)
    try:
        return inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        return ""


def _read(path: Path) -> Reach | None:
    try:
        return Reach(**unseal(read_bounded(path), source=path))
    except FileNotFoundError:
        return None
    except (UserError, OSError, TypeError) as error:
        log.warning("%s; how far the network sees is measured again", one_line(error))
        return None


def _write(path: Path, reach: Reach) -> Reach:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, seal(json.loads(json.dumps(asdict(reach)))).encode())
    except OSError as error:
        log.warning("how far the network sees is not kept in %s: %s", path.parent, one_line(error))
    return reach
