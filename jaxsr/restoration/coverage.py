"""Which rows of an image each value inside a network depends on, read from its operations.

A torch module runs on `CoveredTensor`s. They hold no values, only shapes (torch's meta device) and,
for every element, the first and last row of the input image that it depends on. Each operation
combines these ranges: a convolution takes the union over its taps, a sum over its axes, a view
moves them. The result is an upper bound, exact for the usual layers. Results of constants alone
have values, so that attention masks count: a score of -50 or less counts as no influence.

Ranges are pairs of int16 tensors (first, -last) that broadcast to the tensor's shape, so that a
union is a minimum. An operator without a rule makes its result depend on all that went in.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import _pytree as pytree

from jaxsr.interop.mode_methods import DispatchMode, Options
from jaxsr.restoration.coverage_rules import rule_of
from jaxsr.restoration.covered_tensor import Coverage, CoveredTensor, covered_constant, refresh


def cover(
    network: nn.Module, *, channels: int, rows: int, columns: int, axis: int
) -> tuple[Any, Coverage]:
    """Runs a network on an image that it is not shown.

    Args:
      network: takes (1, `channels`, height, width), on the CPU, in evaluation mode.
      channels: of the image.
      rows: of the image along `axis`; at most 2**14.
      columns: along the other axis.
      axis: 2 follows rows, 3 follows columns.

    Returns:
      The network's output, and the `Coverage` of the run.

    Raises:
      NotAnalysedError: see the class.
      Exception: whatever the network raises.
    """
    size = (rows, columns) if axis == 2 else (columns, rows)
    meta = torch.empty((1, channels, *size), device="meta")
    shape = [1, 1, 1, 1]
    shape[axis] = rows
    index = torch.arange(rows, dtype=torch.int16).reshape(shape)
    coverage = Coverage(rows=rows, rule_of=rule_of)
    with torch.no_grad(), _names(network, coverage), _WrittenConstants(coverage):
        output = network(CoveredTensor(meta, (index, -index), coverage))
    output = covered_constant(coverage, output)
    if isinstance(output, CoveredTensor):
        refresh(output)
    return output, coverage


class _WrittenConstants(DispatchMode):
    """Gives constants that results were written into their ranges, wherever they are read."""

    def __init__(self, coverage: Coverage) -> None:
        super().__init__()
        self._coverage = coverage

    def call(self, func: torch._ops.OpOverload, args: tuple, kwargs: Options) -> Any:
        values = args, kwargs
        if self._coverage.written_constants:
            values = pytree.tree_map(lambda v: covered_constant(self._coverage, v), values)
        return func(*values[0], **values[1])


@contextmanager
def _names(network: nn.Module, coverage: Coverage) -> Iterator[None]:
    names = {
        module: f"{name!r} ({type(module).__name__})" if name else type(module).__name__
        for name, module in network.named_modules()
    }

    def enter(module: nn.Module, _inputs: tuple) -> None:
        coverage.path.append(names.get(module, type(module).__name__))

    def leave(_module: nn.Module, _inputs: tuple, _output: object) -> None:
        coverage.path.pop()

    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave):
        yield
