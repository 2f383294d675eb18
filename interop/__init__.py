"""PyTorch modules as pure JAX functions, and the parts for training them on a mesh.

The only package that imports both frameworks::

    jm = to_jax(module)                                           # torch names, JAX arrays
    outputs, buffers = jm.apply(jm.params, jm.buffers, images)    # pure: jit, grad, shard_map
    print(explain("aten.amax"))                                   # who computes an operator

Public files:

- `module`: `to_jax`, `JaxModule`, `lowering`; `flax`: the same inside Flax NNX.
- `explanation`: `explain`; `errors`: `UnsupportedTorchError`.
- `hooks`: watches torch code while it is traced, and runs torch code on arrays.
- `mesh`, `distributed`: devices, placement, several hosts.
- `dlpack`: tensors and arrays in the same memory; `out_of_memory`: its errors in one line.
- `image_transforms`: kernels and policies of `jaxsr.ops` on torch tensors.
- `checkpoint`, `weights`: saving and restoring training states; weights under torch names.

Rooms:

- `_core/`: how a module is traced. `functionalize` makes the copy that runs; `dispatch` gets every
  aten operator and asks `registry` who computes it; `tensor` and `views` keep torch's aliasing.
- `lowerings/`: the functions that compute operators. One file per subject, found by themselves.
- `cpu_kernels/`: torch's own kernels in programs that are lowered for CPUs.
- `folding/`: lane folding, which holds images in another layout. `_core/deferred` is all that the
  core knows of it, and `module` hands it over.
- `train/`: the training step, optimizers, and the same step in plain PyTorch.
- `aot/`: compilation ahead of time: chips, programs, reports.

To add a lowering, write a function of arrays under `@lowers(torch.ops.aten.NAME.OVERLOAD)` in the
file of `lowerings/` that has its subject, or in a new file there, and a test in
`tests/interop/lowerings`. For an operator of another
library, `@lowering("namespace::op")` does the same from outside.

Names are imported on first use: importing this package touches no device. It changes one thing:
torch's idle threads sleep instead of spinning, if torch is not loaded yet.
"""

import importlib
import os
import sys
from typing import Any

if "torch" not in sys.modules:
    # Torch's kernels run inside JAX programs (`cpu_kernels`). Threads that spin while they wait for
    # the next kernel would take the cores from XLA's. OpenMP reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_HOME = {
    "JaxModule": "module",
    "LongLoopWarning": "errors",
    "array_of": "dlpack",
    "tensor_of": "dlpack",
    "to_jax": "module",
    "UnsupportedTorchError": "errors",
    "explain": "explanation",
    "lowering": "module",
    "MeshShape": "mesh_shape",
    "make_mesh": "mesh",
    "place": "mesh",
    "place_batch": "mesh",
    "OptimizerConfig": "train.optimizers",
    "make_optimizer": "train.optimizers",
    "StepConfig": "train.step",
    "TrainState": "train.step",
    "init_state": "train.step",
    "TrainStep": "train.step",
    "Checkpoints": "checkpoint",
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
