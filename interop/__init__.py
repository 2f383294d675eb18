# pyright: strict
"""Torch modules as pure JAX functions, and what it takes to train them on a mesh.

Names are imported on first use: importing this package touches no device and changes nothing.
"""

import importlib
from typing import Any

_HOME = {
    "JaxModule": "module",
    "to_jax": "module",
    "UnsupportedTorchError": "errors",
    "register_lowering": "module",
    "MeshShape": "mesh",
    "make_mesh": "mesh",
    "place": "mesh",
    "place_batch": "mesh",
    "OptimizerConfig": "train.optimizers",
    "make_optimizer": "train.optimizers",
    "StepConfig": "train.step",
    "TrainState": "train.step",
    "init_state": "train.step",
    "make_train_step": "train.step",
    "Checkpoints": "checkpoint",
    "explain": "explanation",
    "LaneFolding": "folding.policy",
    "choose_folding": "folding.policy",
}

__all__ = [*_HOME]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"jaxsr.interop.{_HOME[name]}"), name)
    raise AttributeError(f"module 'jaxsr.interop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
