"""Reads figures from a compiled CUDA program: arithmetic, memory traffic, whose kernels run.

XLA's own cost analysis counts everything but the calls of cuDNN and cuBLAS, which are counted here
from their shapes. A loop's body counts once. The workspace of these libraries is only known
on the device.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxsr.interop.aot.hlo import Array, parse_arrays, parse_instructions, parse_operands

_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_FUSION_KIND = re.compile(r'"fusion_backend_config":\{"kind":"(\w+)"')
_OWNERS = {"__cudnn$": "cuDNN", "__cublas$": "cuBLAS"}
_PRODUCTS = ("dot", "convolution")


@dataclass(frozen=True, kw_only=True)
class GpuProgram:
    """One device's compiled program."""

    flops: float
    bytes: float
    """Read and written by kernels."""
    kernels: Mapping[str, int] = field(default_factory=dict[str, int])
    """By whose they are: cuDNN, cuBLAS, Triton products, Triton, XLA."""
    transposed_bytes: int = 0
    """Written by transposes of arrays with three or more axes, alone or inside kernels."""
    narrow_convolutions: int = 0
    """cuDNN convolutions of 16-bit types with channels that are not multiples of 8."""

    @property
    def needs_autotuning(self) -> bool:
        """Whether it fails unless the device compiles it: XLA chooses the algorithms of cuDNN's
        convolutions there, and cuDNN refuses those without one."""
        return "cuDNN" in self.kernels


def read_program(compiled: Any, text: str) -> GpuProgram:
    """Counts a program that XLA compiled for CUDA.

    Args:
      compiled: of `jax.stages.Compiled`, compiled ahead of time.
      text: its optimised HLO.
    """
    shapes: dict[str, list[Array]] = {}
    kernels: Counter[str] = Counter()
    flops, moved, transposed, narrow = 0.0, 0, 0, 0
    fusions_with_products = _computations_with_products(text)
    for line in text.splitlines():
        for name, result, operation, rest in parse_instructions(line):
            shapes[name] = list(parse_arrays(result))
            if operation == "transpose" and len(shapes[name][0].sizes) >= 3:
                transposed += shapes[name][0].bytes
            elif operation == "fusion":
                kernels[_fusion_owner(rest, fusions_with_products)] += 1
            elif operation == "custom-call" and (target := _TARGET.search(rest)):
                owner = next((o for p, o in _OWNERS.items() if target[1].startswith(p)), None)
                if owner is None:
                    continue
                kernels[owner] += 1
                inputs = [shapes[n][0] for n in parse_operands(rest)]
                moved += sum(a.bytes for a in (*inputs, shapes[name][0]))
                if owner == "cuDNN":
                    flops += _convolution_flops(target[1], rest, inputs, shapes[name][0])
                    narrow += _is_narrow(inputs, rest)
                else:
                    flops += _product_flops(rest, inputs, shapes[name][0])
    costs = _xla_costs(compiled)
    return GpuProgram(
        flops=flops + costs.get("flops", 0.0),
        bytes=moved + costs.get("bytes accessed", 0.0),
        kernels=dict(kernels),
        transposed_bytes=transposed,
        narrow_convolutions=narrow,
    )


def _xla_costs(compiled: Any) -> Mapping[str, float]:
    """XLA's count of everything but library calls, from the CPU's client."""
    import jax
    from jaxlib import _jax  # pyright: ignore[reportPrivateUsage]

    modules = compiled.runtime_executable().hlo_modules()
    client = jax.devices("cpu")[0].client
    return _jax.hlo_module_cost_analysis(client, modules[0])


def _computations_with_products(text: str) -> frozenset[str]:
    """Names of computations that hold a product."""
    names: set[str] = set()
    current = ""
    for line in text.splitlines():
        if (header := re.match(r"(?:ENTRY )?%([\w.\-]+) \(", line)) is not None:
            current = header[1]
        elif any(operation in _PRODUCTS for _, _, operation, _ in parse_instructions(line)):
            names.add(current)
    return frozenset(names)


def _fusion_owner(rest: str, with_products: frozenset[str]) -> str:
    kind = _FUSION_KIND.search(rest)
    called = re.search(r"\bcalls=%([\w.\-]+)", rest)
    if kind is None or "triton" not in kind[1]:
        return "cuDNN" if kind is not None and "cudnn" in kind[1] else "XLA"
    is_product = "gemm" in kind[1] or (called is not None and called[1] in with_products)
    return "Triton products" if is_product else "Triton"


def _convolution_flops(target: str, rest: str, inputs: list[Array], result: Array) -> float:
    """A convolution's operations, or its gradient's: two for each output and filter element."""
    labels = re.search(r"dim_labels=\w+_\w+->(\w+)", rest)
    if labels is None or len(inputs) < 2:
        return 0.0
    if target.endswith("BackwardFilter"):
        output, filters = inputs[1], result
    elif target.endswith("BackwardInput"):
        output, filters = inputs[0], inputs[1]
    else:
        output, filters = result, inputs[1]
    channels = output.sizes[labels[1].index("f")]
    return 2.0 * math.prod(output.sizes) / channels * math.prod(filters.sizes)


def _is_narrow(inputs: list[Array], rest: str) -> bool:
    labels = re.search(r"dim_labels=(\w+)_(\w+)->", rest)
    if labels is None or inputs[0].dtype not in ("bf16", "f16"):
        return False
    return inputs[0].sizes[labels[1].index("f")] % 8 != 0


def _product_flops(rest: str, inputs: list[Array], result: Array) -> float:
    match = re.search(r'"lhs_contracting_dimensions":(\[[^\]]*\])', rest)
    if match is None:
        return 0.0
    axes = [int(axis) for axis in json.loads(match[1])]
    return 2.0 * math.prod(result.sizes) * math.prod(inputs[0].sizes[axis] for axis in axes)
