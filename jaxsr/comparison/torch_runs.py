"""The module in torch: in float32, and in float64 as the referee."""

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from jaxsr.comparison.arguments import Arguments, named_leaves
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.eager_control_flow import eager_control_flow
from jaxsr.interop.host_arrays import to_numpy
from jaxsr.interop.mode_methods import FunctionMode, Options
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.python_state import Snapshot
from jaxsr.interop.torch_draws import TorchDraws
from jaxsr.interop.torch_evaluation import evaluated, in_mode

Arrays = dict[str, np.ndarray]
_WIDE = {
    **dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float64),
    torch.complex64: torch.complex128,
}


@dataclass(kw_only=True)
class RunResult:
    """The results of one run of a module, in torch or in JAX."""

    outputs: Arrays = field(default_factory=dict)
    """By name; dtypes that NumPy lacks as float32."""
    tree: PyTree = None
    """Host arrays as the module nests its outputs, of a run in torch."""
    gradients: Arrays = field(default_factory=dict)
    """Gradients of trainable parameters by name, and of inputs as `∂ NAME`."""
    buffers: Arrays = field(default_factory=dict)
    """Buffers after the run, as far as they can be compared as floats or integers."""
    draws: int = 0
    """Random draws that the run made."""
    is_seeded: bool = False
    """Whether the module seeds torch's generator before it draws."""
    differentiable: frozenset[str] = frozenset()
    """Outputs with a gradient."""

    @property
    def arrays(self) -> tuple[Arrays, Arrays, Arrays]:
        """Outputs, gradients and buffers."""
        return self.outputs, self.gradients, self.buffers


class _Float64(FunctionMode):
    """Casts to a narrower dtype in the module's code become casts to float64."""

    def call(self, func: Callable, args: tuple, kwargs: Options) -> Any:
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            func = torch.Tensor.double
        elif func in (torch.nn.functional.grouped_mm, torch._grouped_mm):  # not in float64
            func = _grouped_matmul
        wide_args, wide_kwargs = pytree.tree_map(_wide, (args, kwargs))
        return func(*wide_args, **wide_kwargs)


def _grouped_matmul(mat_a: torch.Tensor, mat_b: torch.Tensor, **options: Any) -> torch.Tensor:
    """torch.nn.functional.grouped_mm, group by group."""
    offs = options.pop("offs", None)
    if any(value is not None for value in options.values()):
        raise NotImplementedError(f"grouped_mm with {', '.join(options)}")
    if offs is None:
        return mat_a @ mat_b
    ends = [int(end) for end in offs]
    groups = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    if mat_a.ndim == mat_b.ndim == 2:
        return torch.stack([mat_a[:, rows] @ mat_b[rows] for rows in groups])
    if mat_a.ndim == 3:
        return torch.cat([a @ mat_b[:, cols] for a, cols in zip(mat_a, groups, strict=True)], 1)
    products = torch.cat([mat_a[rows] @ b for b, rows in zip(mat_b, groups, strict=True)])
    return nn.functional.pad(products, (0, 0, 0, mat_a.shape[0] - products.shape[0]))


def _wide(value: Any) -> Any:
    return _WIDE.get(value, value) if isinstance(value, torch.dtype) else value


class _ContiguousGradients(FunctionMode):
    """Keeps a fault of torch 2.13 out of the referee.

    In evaluation mode batch_norm's gradient is wrong for one image and a permuted cotangent, as
    behind `bn(x).permute(2, 3, 0, 1)`.
    """

    def call(self, func: Callable, args: tuple, kwargs: Options) -> Any:
        result = func(*args, **kwargs)
        if func is nn.functional.batch_norm and result.requires_grad:
            result.register_hook(lambda gradient: gradient.clone(
                memory_format=torch.contiguous_format
            ))  # fmt: skip
        return result


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """In this block torch computes in float64 where the code uses a narrower dtype."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64():
            yield
    finally:
        torch.set_default_dtype(default)


def widened(module: nn.Module) -> nn.Module:
    """A copy of the module whose float32 state is float64."""
    twin = copy_module(module)
    registered = [t for t in (*twin.parameters(), *twin.buffers()) if t.dtype in _WIDE]
    # One storage for all that shared one; the old ones are kept, so that their ids are not reused.
    wide: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
    for tensor in registered:
        storage = tensor.untyped_storage()
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
        wide.setdefault(storage._cdata, (storage, flat.to(_WIDE[tensor.dtype])))
    for tensor in (*registered, *Snapshot(twin).tensors):
        number = tensor.untyped_storage()._cdata if tensor.dtype in _WIDE else None
        if number in wide and tensor.grad_fn is None:
            place = (tensor.shape, tensor.stride(), tensor.storage_offset())
            tensor.data = wide[number][1].as_strided(*place)
    return twin


_HALF_STEP = 2.0**-24
"""Half a step of float32: rounding moves a value by at most this share."""


def perturbed(module: nn.Module, seed: int, *, double: bool, by: float = _HALF_STEP) -> nn.Module:
    """A copy whose floating state is moved by a share of itself, up or down at random."""
    module = widened(module) if double else copy_module(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(moved(tensor, generator, by=by))
    return module


def moved(
    tensor: torch.Tensor, generator: torch.Generator, *, by: float = _HALF_STEP
) -> torch.Tensor:
    """The tensor moved by a share of itself, up or down at random."""
    signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    return tensor * (1 + signs.to(tensor.dtype) * by)


def run_torch(
    module: nn.Module,
    arguments: Arguments,
    *,
    double: bool = False,
    train: bool = False,
    key: jax.Array | None = None,
    differentiate: bool = False,
    method: Callable | None = None,
    device: str = "cpu",
) -> RunResult:
    """Runs a copy of the module.

    Args:
      module: unchanged.
      arguments: of its forward.
      double: in float64.
      train: the mode.
      key: random draws are those of `JaxModule.apply(rng=key)`.
      differentiate: also compute the gradients of a loss: the sum of all outputs times their
        `cotangent`.
      method: calls the copy instead of `copy(*args, **kwargs)`; for recording.
      device: torch's, where it runs.
    """
    module = (widened(module) if double else copy_module(module)).to(device)
    in_mode(module, train)
    return run_here(
        module, arguments, double=double, key=key, differentiate=differentiate, method=method,
        device=device,
    )  # fmt: skip


def run_here(
    module: nn.Module,
    arguments: Arguments,
    *,
    double: bool = False,
    key: jax.Array | None = None,
    differentiate: bool = False,
    method: Callable | None = None,
    device: str = "cpu",
) -> RunResult:
    """Runs the module itself, as it is; the options are those of `run_torch`."""
    tensors = {
        n: t.clone().to(device, _WIDE.get(t.dtype, t.dtype) if double else t.dtype)
        for n, t in arguments.tensors.items()
    }
    floating = {n: t for n, t in tensors.items() if t.is_floating_point() or t.is_complex()}
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if differentiate:
        for tensor in floating.values():
            tensor.requires_grad_()
    # A copy: a module that writes into its input may do so to no leaf.
    args, kwargs = arguments.call(
        {n: t.view_as(t) if differentiate else t for n, t in tensors.items()}
    )
    with running(module, double=double, key=key, differentiate=differentiate) as draws:
        result = (method or nn.Module.__call__)(module, *args, **kwargs)
        outputs = named_leaves(result, torch.Tensor)
        gradients: Arrays = {}
        graded = {n: t for n, t in outputs.items() if t.requires_grad}
        if differentiate and graded:
            loss = sum(
                (t * torch.from_numpy(cotangent(n, tuple(t.shape))).to(t.real)).real.sum()
                for n, t in graded.items()
            )
            sources = {**parameters, **{f"∂ {n}": t for n, t in floating.items()}}
            values = torch.autograd.grad(loss, [*sources.values()], allow_unused=True)  # type: ignore[arg-type]
            gradients = {
                n: host_array(torch.zeros_like(t) if g is None else g)
                for (n, t), g in zip(sources.items(), values, strict=True)
            }
    tree = pytree.tree_map_only(torch.Tensor, lambda t: to_numpy(t).copy(), result)
    return RunResult(
        outputs={n: host_array(t) for n, t in outputs.items()},
        tree=tree,
        gradients=gradients,
        buffers={n: host_array(b) for n, b in module.named_buffers()},
        draws=draws.count if draws is not None else 0,
        is_seeded=draws is not None and draws.is_seeded,
        differentiable=frozenset(graded),
    )


@contextlib.contextmanager
def running(
    module: nn.Module, *, double: bool, key: jax.Array | None, differentiate: bool = False
) -> Iterator[TorchDraws | None]:
    """In this block torch runs the module's code; with a key, yields the source of its draws."""
    draws = TorchDraws(key) if key is not None else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.enable_grad() if differentiate else evaluated(module))
        stack.enter_context(eager_control_flow())
        if differentiate:
            stack.enter_context(_ContiguousGradients())
        if double:
            stack.enter_context(in_float64())
        if draws is not None:
            stack.enter_context(draws)
        yield draws


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """A copy on the host; dtypes that NumPy lacks as float32."""
    array = to_numpy(tensor).copy()
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def cotangent(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Factors of an output in the loss: fixed normal numbers around 0.5, float32.

    Around 0 their sum, the gradient of a last bias, would cancel: any order of adding rounds then.
    """
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return np.asarray(generator.normal(0.5, 1.0, shape), np.float32)


def torch_step(
    module: nn.Module, arguments: Arguments, *, differentiate: bool
) -> Callable[[], object]:
    """A step to be timed: forward, or forward and the gradients of parameters."""
    module = in_mode(copy_module(module).cpu())

    def step() -> object:
        args, kwargs = arguments.call({n: t.clone() for n, t in arguments.tensors.items()})
        grads = torch.enable_grad() if differentiate else evaluated(module)
        with grads, eager_control_flow():
            outputs = named_leaves(module(*args, **kwargs), torch.Tensor).values()
            if not differentiate:
                return outputs
            loss = sum(t.real.sum() for t in outputs if t.requires_grad)
            parameters = [p for p in module.parameters() if p.requires_grad]
            return torch.autograd.grad(loss, parameters, allow_unused=True)  # type: ignore[arg-type]

    return step


def steps_per_second(run: Callable[[], object], *, budget_s: float) -> float:
    """How often `run` can be called in a second: the median of the calls in the budget."""
    run()
    times: list[float] = []
    while not times or (sum(times) < budget_s and len(times) < 50):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return 1 / float(np.median(times))
