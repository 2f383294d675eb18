"""torch's database of operators and their samples (OpInfo), each sample as a module.

The database says of every sample which inputs are differentiated, how inputs are made symmetric or
triangular first (`gradcheck_wrapper`), and which functions of the results do not depend on free
choices such as the signs of singular vectors (`output_process_fn_grad`).
"""

import dataclasses
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.torch_runs import cotangent
from jaxsr.interop import UnsupportedTorchError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
    "float32 rounded": torch.float32,
    "float32 slopes": torch.float32,
    "float32 in place": torch.float32,
}
"""Dtypes of samples. In place, a copy of the input is written. Rounded to whole numbers, samples
have zeros, bounds and equal elements, where slopes jump. For slopes, the gradient is computed, and
its own gradient compared."""
_SINGULAR = "whole matrices are singular, where each library has infinities of its own"
_REFLECTORS = (
    "whole vectors are not Householder reflectors, which torch's gradient takes for granted"
)
NOT_ROUNDED = {
    "linalg.cholesky_ex": "of no positive definite matrix: torch leaves a part of the factor",
    "linalg.householder_product": _REFLECTORS,
    "ormqr": _REFLECTORS,
    "linalg.ldl_factor_ex": _SINGULAR,
    "linalg.lu_solve": _SINGULAR,
    "linalg.slogdet": _SINGULAR,
    "logdet": _SINGULAR,
}
"""Operators whose samples mean nothing when rounded."""
SLOPES_NOT_ROUNDED = {
    **NOT_ROUNDED,
    "linalg.lu": _SINGULAR,
    "linalg.lu_factor": _SINGULAR,
    "linalg.lu_factor_ex": _SINGULAR,
    "_batch_norm_with_update": "channels of equal numbers leave nothing but rounding",
}
"""And those of which slopes mean nothing."""
_CANCELS = "its second derivative cancels: up to 5 % of it are lost in float32, 1e-9 in float64"
NO_SLOPES = {
    "nn.functional.rrelu": "draws its slopes otherwise than torch",
    "pca_lowrank": _CANCELS,
    "svd_lowrank": _CANCELS,
}
"""Operators whose slopes are not compared."""
ROUNDED = 3
"""Samples of an operator that are rounded as well."""

# Results that depend on which of several equal elements is taken: torch's documentation leaves it
# open, so that gradients are compared where no two elements are equal.
TIES = {
    "argsort", "kthvalue", "masked.median", "median", "mode", "msort", "nanmedian",
    "nanquantile", "quantile", "sort", "topk",
}  # fmt: skip


@functools.cache
def operators() -> dict[str, Any]:
    """Every entry of the database by its name, such as `nn.functional.gelu`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {op.full_name: op for op in op_db}


def pairs(only: str = "", dtypes: tuple[str, ...] = tuple(DTYPES)) -> list[tuple[str, str]]:
    """Names of operators with the dtypes that torch computes them in on the CPU."""
    return [
        (name, dtype)
        for name, op in operators().items()
        for dtype in dtypes
        if only in name and DTYPES[dtype] in op.supported_dtypes("cpu")
        if dtype != "float32 rounded" or name not in NOT_ROUNDED
        if dtype != "float32 slopes" or (op.supports_gradgrad and name not in NO_SLOPES)
        if dtype != "float32 in place" or op.inplace_variant is not None
    ]


@dataclasses.dataclass(kw_only=True)
class Sample:
    """One call of an operator."""

    module: "OperatorModule"
    arguments: Arguments
    """The tensors, in the order in which the module takes them."""
    differentiate: bool
    rounded: bool = False
    """Whether its tensors are whole numbers."""

    def values(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The operator's arguments, with NumPy arrays for tensors."""
        return self.module.call.arguments([*self.arguments.arrays.values()])


def samples(name: str, dtype: str) -> Iterator[Sample]:
    """All samples of an operator, or some of them rounded and one of zeros.

    Where the inputs of an operator of `TIES` have equal elements, its gradient is compared in a
    further sample that has none.
    """
    op, torch_dtype = operators()[name], DTYPES[dtype]
    differentiable = op.supports_autograd and torch_dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    in_place = dtype == "float32 in place"
    if in_place:
        differentiable = differentiable and op.supports_inplace_autograd
    # Some lists of samples depend on `requires_grad`; all of them are made before the first runs,
    # so that random numbers drawn by operators do not change those of samples.
    count = 0
    listed = list(op.sample_inputs("cpu", torch_dtype, requires_grad=differentiable))
    if in_place:
        listed = [sample for sample in listed if not sample.broadcasts_input]
    rounded = dtype == "float32 rounded"
    slopes = dtype == "float32 slopes"
    if (rounded or slopes) and listed:
        count = min(ROUNDED, len(listed))
        listed = [listed[i] for i in np.linspace(0, len(listed) - 1, count).astype(int)]
        if rounded:
            listed.append(listed[-1])
        elif name not in SLOPES_NOT_ROUNDED:
            listed += listed
    for number, sample in enumerate(listed):
        leaves, tree = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        call = _Call(op, sample, tree, places, leaves, in_place=in_place)
        tensors = [leaves[i].detach() for i in places]
        is_rounded = rounded or (slopes and number >= count)
        if is_rounded:
            scale = 0 if rounded and number == len(listed) - 1 else 1
            tensors = [_rounded(tensor, scale) for tensor in tensors]
        graded = any(leaves[i].requires_grad for i in places)
        distinct = [_distinct(t) for t in tensors] if name in TIES and graded else tensors
        has_ties = any(a is not b for a, b in zip(distinct, tensors, strict=True))
        for values, differentiate in ((tensors, graded and not has_ties), (distinct, graded)):
            module = OperatorModule(call)
            if slopes:
                names = _differentiable(call, values) if differentiate else ()
                if not names:
                    continue
                module = SlopeModule(call, names)
            yield Sample(
                module=module,
                arguments=Arguments.of(values, {}),
                differentiate=differentiate,
                rounded=is_rounded,
            )
            if not has_ties:
                break


def _rounded(tensor: torch.Tensor, scale: int) -> torch.Tensor:
    """Whole numbers from -3 to 3, with the tensor's zeros; all of them zeros where `scale` is 0."""
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        return tensor
    return scale * (tensor / 2).round().clamp(-3, 3)


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or one in the same order whose elements all differ."""
    flat = tensor.flatten()
    if not tensor.is_floating_point() or flat.unique().numel() == flat.numel():
        return tensor
    ranks = flat.argsort(stable=True).argsort()
    if tensor.dtype == torch.bfloat16:  # which has few numbers: one after another, from 2**-7 on
        return (ranks + 0x3C00).to(torch.int16).view(tensor.dtype).reshape(tensor.shape)
    return ((ranks - flat.numel() // 2) / 8).to(tensor.dtype).reshape(tensor.shape)


class _Call:
    """A module's call; copies of the module share it."""

    def __init__(
        self,
        op: Any,
        sample: Any,
        tree: Any,
        places: list[int],
        leaves: list,
        *,
        in_place: bool,
    ) -> None:
        self.in_place = in_place
        self.op, self.tree, self.places = op, tree, places
        self.process = sample.output_process_fn_grad
        self.constant = {i for i in places if not leaves[i].requires_grad}
        self.leaves = [None if i in places else leaf for i, leaf in enumerate(leaves)]

    def __deepcopy__(self, memo: Any) -> "_Call":
        return self

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with these for their tensors."""
        leaves = list(self.leaves)
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        return pytree.tree_unflatten(leaves, self.tree)

    def __call__(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """The operator's results, and functions of them."""
        args, kwargs = self.arguments(
            [
                tensor.detach() if i in self.constant else tensor
                for i, tensor in zip(self.places, tensors, strict=True)
            ]
        )
        operator = self._written if self.in_place else self.op.op
        result = operator(*args, **kwargs)
        outputs = _named("out", result)
        wrapper = self.op.gradcheck_wrapper
        of_wrapped = result
        # The default only calls the operator, the other seeds torch too.
        if wrapper.__name__ not in ("<lambda>", "wrapper_set_seed"):
            of_wrapped = wrapper(operator, *args, **kwargs)
        graded = self.process(of_wrapped)
        if graded is result:
            return outputs
        return {n: t.detach() for n, t in outputs.items()} | _named("graded", graded)

    def _written(self, target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """A copy of the input that the operator has written into."""
        copy = target.clone()
        self.op.inplace_variant(copy, *args, **kwargs)
        return copy


def _named(name: str, result: Any) -> dict[str, torch.Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, _VALUES)]
    return {f"{name}{i}": torch.as_tensor(leaf) for i, leaf in enumerate(leaves)}


_VALUES = (torch.Tensor, bool, int, float)


class OperatorModule(nn.Module):
    """One call of an operator as a module of its tensors.

    It returns the results as `out0`, `out1` …, and what gradients are taken of as `graded0` …,
    where that is something else.
    """

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.call(*tensors)


def _differentiable(call: _Call, tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """The results that have a gradient in torch; none where it refuses the values."""
    inputs = [
        t if place in call.constant else t.clone().requires_grad_()
        for place, t in zip(call.places, tensors, strict=True)
    ]
    try:
        results = call(*inputs)
    except RuntimeError:
        return ()
    return tuple(name for name, t in results.items() if t.requires_grad)


class SlopeModule(OperatorModule):
    """The gradient of a call of an operator, by the tensors that it is differentiated by.

    Args:
      call: of the operator.
      names: of the results that are differentiated.
    """

    def __init__(self, call: _Call, names: Sequence[str]) -> None:
        super().__init__(call)
        self.names = tuple(names)

    def forward(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.enable_grad():
            inputs, marked = list(tensors), list[torch.Tensor]()
            for i, (place, tensor) in enumerate(zip(self.call.places, tensors, strict=True)):
                if place not in self.call.constant:
                    copy = inputs[i] = tensor * 1
                    marked.append(copy if copy.requires_grad else copy.requires_grad_())
            outputs = self.call(*inputs)
            loss = sum(
                (t * torch.from_numpy(cotangent(n, tuple(t.shape))).to(t.real)).real.sum()
                for n, t in outputs.items()
                if n in self.names
            )
            assert isinstance(loss, torch.Tensor)
            slopes = torch.autograd.grad(loss, marked, create_graph=True, materialize_grads=True)
        # A sum, because some of torch's zeros have no memory.
        return {f"slope{i}": slope + torch.zeros_like(slope) for i, slope in enumerate(slopes)}


def check_layouts(arguments: Arguments) -> None:
    """Refuses tensors that are no dense arrays.

    Raises:
      UnsupportedTorchError: a tensor is sparse, nested or quantised.
    """
    for tensor in arguments.tensors.values():
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            raise UnsupportedTorchError(
                f"an input with {tensor.layout} layout has no JAX array; use .to_dense() first"
            )
