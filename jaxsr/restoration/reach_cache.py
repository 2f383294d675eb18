"""Remembers how far networks see, in the process and in the user's cache folder."""

import json
import logging
from dataclasses import asdict
from pathlib import Path

from torch import nn

from jaxsr.errors import UserError, one_line
from jaxsr.folders import cache_folder
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.bounded_read import read_bounded
from jaxsr.interop.sealed_json import seal, unseal
from jaxsr.restoration.network_digest import architecture_digest
from jaxsr.restoration.receptive_field import Reach, measure_reach

log = logging.getLogger(__name__)

_KNOWN: dict[str, Reach] = {}


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
