"""What the TPU compiler estimates for resize and for `jax.image.resize`: no TPU, no measurement.

    python benchmarks/ops_tpu.py > benchmarks/results/ops_tpu.json

Compiles each for one chip of a TPU v5e through libtpu and reads the compiled program: estimated
cycles of its operations, and bytes that they read and write. `ideal` is the input and the output
once each; a separable resize writes and reads one intermediate besides, `two_passes`. Prints one
line of JSON; `ops.py --tpu` runs this in a process of its own.
"""

import json
import os
import sys
from functools import partial
from typing import Any

# Before JAX is imported: compile for a TPU on a machine that has none, beside other such processes.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

TOPOLOGY = "v5e:1x1"
# shape (n, c, h, w), size, method, antialias
CASES = [
    ((1, 3, 1080, 1920), (540, 960), "bicubic", True),
    ((8, 3, 512, 512), (256, 256), "bicubic", True),
    ((16, 3, 96, 96), (384, 384), "bicubic", False),
    ((1, 3, 1080, 1920), (640, 1138), "bilinear", False),
]


def main() -> None:
    """Compiles every case and prints the estimates."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from jaxsr.interop.aot_hlo import cycles
    from jaxsr.ops import resize
    from jaxsr.ops._passes import products
    from jaxsr.ops._taps_torch import torch_passes

    chip = topologies.get_topology_desc(TOPOLOGY, "tpu").devices[:1]
    sharding = NamedSharding(Mesh(np.array(chip), ("chip",)), PartitionSpec())

    def compiled(call: Any, shape: tuple[int, ...]) -> Any:
        image = jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)
        return jax.jit(call).lower(image).compile()

    rows = []
    for shape, size, method, antialias in CASES:
        n, c, h, w = shape
        ours = compiled(
            partial(resize, size=size, method=method, antialias=antialias, axes=(-2, -1)), shape
        )
        passes = torch_passes(
            shape,
            np.dtype(np.float32),
            (2, 3),
            size,
            method=method,
            antialias=antialias,
            align_corners=False,
            scale=(None, None),
        )
        # The bytes without the second way that a NaN would take: the compiler counts both. The
        # check for one reads the smaller of image and result once more.
        finite = compiled(partial(products, passes=passes), shape)
        check = 4 * n * c * min(h * w, size[0] * size[1])
        name = {"bilinear": "linear", "bicubic": "cubic" if antialias else "cubic-pytorch"}[method]
        theirs = compiled(
            partial(jax.image.resize, shape=(n, c, *size), method=name, antialias=antialias),
            shape,
        )
        ideal = 4 * n * c * (h * w + size[0] * size[1])
        between = size[0] * w if size[0] < h else h * size[1]
        figures = {
            "jaxsr": {
                "kilocycles": cycles(ours.as_text()) / 1e3,
                "megabytes": (finite.cost_analysis()["bytes accessed"] + check) / 1e6,
            },
            "jax.image": {
                "kilocycles": cycles(theirs.as_text()) / 1e3,
                "megabytes": theirs.cost_analysis()["bytes accessed"] / 1e6,
            },
        }
        row = {
            "name": f"{'x'.join(map(str, shape))} to {size[0]}x{size[1]} {method}"
            + (" antialias" if antialias else ""),
            "ideal_megabytes": ideal / 1e6,
            "two_passes_megabytes": (ideal + 8 * n * c * between) / 1e6,
            "estimates": figures,
        }
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    print(json.dumps({"topology": TOPOLOGY, "rows": rows}))


if __name__ == "__main__":
    main()
