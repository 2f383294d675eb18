"""JAX runners that `jaxsr.restore` keeps between calls, so that no program is compiled twice.

A runner is used again for the same options and the same network: the same module, or one loaded
from weights, metadata and classes that are equal. All that its programs were made from must be as
it was: tensors by their content, attributes and globals by `jaxsr.interop.python_state`.
"""

import os
import threading
from collections import OrderedDict
from typing import NamedTuple

from jaxsr.interop.python_state import Snapshot
from jaxsr.models.described_values import tensor_digest
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.network_digest import network_digest
from jaxsr.restoration.receptive_field import Reach
from jaxsr.restoration.restorer import open_tile_runner
from jaxsr.runtime.runner import Runner

_RUNNERS = 4
"""Runners that are kept; the one used longest ago goes first."""
_PROGRAMS = 32
"""Programs, one a shape, with which a runner is let go: each keeps some megabytes."""


class _OpenRunner(NamedTuple):
    runner: Runner
    reach: Reach
    """Scale and tile margin of the network, which take seconds to measure where it has windows."""
    state: Snapshot
    digest: str
    """The network's digest."""
    tensor_digests: list[str]
    """Digests of all tensors that its code reaches."""


_open_runners: OrderedDict[object, _OpenRunner] = OrderedDict()
_lock = threading.Lock()


def kept_runner(model: RestorationModel, config: RestoreConfig, *, is_module: bool) -> Runner:
    """The runner of a network's tiles, from an earlier call with the same model and settings.

    Args:
      model: the network for the tiles.
      config: how.
      is_module: the caller handed in the module itself, whose state no digest covers in full.
    """
    if config.engine != "jax":  # nothing is compiled
        return open_tile_runner(model, config)
    key = (
        id(model.network) if is_module else model.digest,
        *(
            model.value_range,
            model.channels,
            config.ensemble,
            config.mesh,
            config.dtype,
            config.lane_folding,
        ),
        os.environ.get("JAXSR_CPU_KERNELS"),
    )
    with _lock:
        opened = _open_runners.pop(key, None)
    digest = network_digest(model.network) if is_module else model.digest
    is_kept = opened is not None and len(opened.runner.programs) < _PROGRAMS
    if opened is None or not (is_kept and digest == opened.digest and _is_unchanged(opened)):
        runner = open_tile_runner(model, config)
        state = Snapshot(model.network)  # keeps the module, so that no other gets its id
        tensor_digests = [*map(tensor_digest, state.tensors)]
        opened = _OpenRunner(runner, model.reach, state, digest, tensor_digests)
    vars(model)["reach"] = opened.reach  # its cached property
    with _lock:
        _open_runners[key] = opened
        while len(_open_runners) > _RUNNERS:
            _open_runners.popitem(last=False)
    return opened.runner


def _is_unchanged(opened: _OpenRunner) -> bool:
    digests = [*map(tensor_digest, opened.state.tensors)]
    return digests == opened.tensor_digests and not opened.state.changes()
