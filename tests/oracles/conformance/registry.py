"""The conformance suite's cases: what a torch module must compute, held against plain torch.

A case is a module, its inputs and a mode. `run_torch` and `run_jaxsr` give outputs, gradients with
respect to parameters and inputs, and buffers after each call; `differences` compares them. The
table in docs/conformance.md is made from the same cases by `python -m benchmarks.conformance`.
"""

import copy
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from jaxsr.interop import to_jax

CASES: dict[str, "Case"] = {}
TRAINING_CALLS = 3
# Float32 sums in another order: the tolerance grows with the size of what is compared.
RTOL = {"float32": 2e-5, "bfloat16": 4e-2}
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
"""Its version, such as (2, 13)."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One module with its inputs."""

    name: str
    group: str
    build: Callable[[], nn.Module]
    inputs: tuple[Callable[[np.random.Generator], np.ndarray], ...]
    train: bool = False
    refused: str | None = None
    """Part of the error's text, where the module is refused."""
    bfloat16: bool = False
    """Also compared in bfloat16."""
    tolerance: float = 1.0
    """Factor on the usual tolerance, with the reason beside the case."""
    method: str = "forward"
    derivative_since: tuple[int, int] = (2, 11)
    """First torch that has its derivative; with an older one only values are compared."""

    @property
    def differentiable(self) -> bool:
        """Whether this torch can tell what the gradients must be."""
        return self.derivative_since <= TORCH

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [make(rng) for make in self.inputs]

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        module = self.build()
        # Zeros and ones hide mistakes in affine parameters and running statistics.
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for tensor in module.parameters():
                if tensor.dim() <= 1 and tensor.is_floating_point():
                    tensor.add_(torch.rand(tensor.shape, generator=generator) * 0.2)
        return module.train(self.train)


def case(
    group: str, name: str, build: Callable[[], nn.Module], *inputs: Any, **options: Any
) -> None:
    if name in CASES:
        raise ValueError(f"two conformance cases are called {name!r}")
    CASES[name] = Case(name, group, build, inputs, **options)


class Lambda(nn.Module):
    """A function as a module, with a small parameter that it may use as `w`."""

    def __init__(self, function: Callable[..., Any], shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.function = function
        self.w = None if shape is None else nn.Parameter(torch.randn(shape))

    def forward(self, *args: Any) -> Any:
        return self.function(*args) if self.w is None else self.function(self.w, *args)


def fn(group: str, name: str, function: Callable[..., Any], *inputs: Any, **options: Any) -> None:
    """A case for a function of the inputs."""
    shape = options.pop("w", None)
    case(group, name, lambda: Lambda(function, shape), *inputs, **options)


# ---- inputs


def normal(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.standard_normal(shape, dtype=np.float32)


def positive(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.uniform(0.1, 0.9, shape).astype(np.float32)


def kinks(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Small whole numbers: many exact zeros, ties and values on a function's bounds."""
    return lambda rng: rng.integers(-3, 4, shape).astype(np.float32)


def ints(high: int, *shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.integers(0, high, shape).astype(np.int32)


def bools(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.random(shape) < 0.5


def fixed(values: Any, dtype: Any = np.float32) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda _: np.asarray(values, dtype)


# ---- running


@dataclasses.dataclass
class Result:
    outputs: list[np.ndarray]
    gradients: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]
    kernels: frozenset[str] = frozenset()
    """Other libraries' kernels that a jitted program calls. `jaxsr_stored` is not one."""


def _numpy(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().resolve_conj()
        return value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array


def _to_torch(array: np.ndarray, bf16: bool) -> torch.Tensor:
    tensor = torch.tensor(array)
    if tensor.dtype == torch.int32:
        return tensor.long()
    if tensor.is_floating_point():
        tensor = tensor.to(torch.bfloat16) if bf16 else tensor
        return tensor.requires_grad_()
    return tensor


def _weights(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def _differentiable(leaf: Any) -> bool:
    kind = leaf.dtype
    return bool(jnp.issubdtype(kind, jnp.inexact))


def run_torch(c: Case, bf16: bool = False) -> Result:
    """The reference: plain torch on the CPU."""
    module = c.module()
    module = module.bfloat16() if bf16 else module
    frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
    stateful = bool(frozen) or next(module.buffers(), None) is not None
    calls = TRAINING_CALLS if c.train and stateful else 1
    for _ in range(calls):
        module.zero_grad()
        inputs = [_to_torch(a, bf16) for a in c.arrays()]
        if not c.differentiable:
            inputs = [x.detach() for x in inputs]
        leaves = pytree.tree_leaves(
            (module if c.method == "forward" else getattr(module, c.method))(*inputs)
        )
        outputs = [t for t in leaves if isinstance(t, torch.Tensor)]
        weights = _weights([tuple(t.shape) for t in outputs])
        pairs = [(t, w) for t, w in zip(outputs, weights, strict=True) if t.requires_grad]
        total = sum(
            ((t.real if t.is_complex() else t).float() * torch.from_numpy(w)).sum()
            for t, w in pairs
        )
        if isinstance(total, torch.Tensor):
            total.backward()
    grads = {n: p.grad for n, p in module.named_parameters() if p.requires_grad}
    grads |= {f"input {i}": t.grad for i, t in enumerate(inputs) if t.requires_grad}
    shapes = {n: p for n, p in module.named_parameters()}
    shapes |= {f"input {i}": t for i, t in enumerate(inputs)}
    return Result(
        [_numpy(t) for t in outputs],
        {n: _numpy(torch.zeros_like(shapes[n]) if g is None else g) for n, g in grads.items()},
        {n: _numpy(b) for n, b in (dict(module.named_buffers()) | frozen).items()},
    )


def _run_pure(
    apply: Callable[..., Any],
    params: Any,
    buffers: Any,
    arrays: list,
    calls: int,
    jit: bool,
    differentiable: bool,
) -> Result:
    """Outputs and gradients of `apply(params, buffers, *inputs) -> (outputs, buffers)`."""
    floats = [i for i, a in enumerate(arrays) if _differentiable(a)]

    def loss(trained: tuple, buffers: Any) -> Any:
        params, chosen = trained
        full = list(arrays)
        for i, a in zip(floats, chosen, strict=True):
            full[i] = a
        result, buffers = apply(params, buffers, *full)
        outputs = [o for o in pytree.tree_leaves(result) if isinstance(o, jax.Array)]
        weights = _weights([o.shape for o in outputs])
        total = sum(
            (jnp.sum(o.real.astype(jnp.float32) * w))
            for o, w in zip(outputs, weights, strict=True)
            if _differentiable(o)
        )
        return jnp.asarray(total, jnp.float32), (outputs, buffers)

    step = jax.value_and_grad(loss, has_aux=True)
    trained = (params, [arrays[i] for i in floats])
    kernels: frozenset[str] = frozenset()
    if jit:
        # The programs are tiny: what takes time is optimising them.
        options: Any = {"xla_backend_optimization_level": 0}
        lowered = jax.jit(step).lower(trained, buffers)
        kernels = frozenset(re.findall(r"@(jaxsr_\w+)", lowered.as_text())) - {"jaxsr_stored"}
        step = lowered.compile(compiler_options=options)
    for _ in range(calls):
        (_, (outputs, buffers)), (grads, chosen) = step(trained, buffers)
    named = {n: _numpy(g) for n, g in grads.items()}
    named |= {f"input {i}": _numpy(g) for i, g in zip(floats, chosen, strict=True)}
    return Result(
        [_numpy(o) for o in outputs],
        named if differentiable else {},
        {n: _numpy(b) for n, b in buffers.items()},
        kernels,
    )


def run_jaxsr(c: Case, bf16: bool = False, jit: bool = True) -> Result:
    """The same module through `to_jax`."""
    module = c.module()
    jm = to_jax(module.bfloat16() if bf16 else module)
    arrays: list[Any] = [jnp.asarray(a) for a in c.arrays()]
    if bf16:
        arrays = [a.astype(jnp.bfloat16) if _differentiable(a) else a for a in arrays]

    def apply(params: Any, buffers: Any, *inputs: Any) -> Any:
        return jm.apply(params, buffers, *inputs, train=c.train, method=c.method)

    calls = TRAINING_CALLS if c.train and jm.buffers else 1
    return _run_pure(apply, jm.params, jm.buffers, arrays, calls, jit, c.differentiable)


def run_torchax(c: Case) -> Result:
    """The same module through torchax as it is, for the table's sake."""
    import torchax

    env = torchax.default_env()
    module = copy.deepcopy(c.module())
    params = {n: env.t2j_copy(p.detach()) for n, p in module.named_parameters() if p.requires_grad}
    buffers = {n: env.t2j_copy(b) for n, b in module.named_buffers()}
    buffers |= {
        n: env.t2j_copy(p.detach()) for n, p in module.named_parameters() if not p.requires_grad
    }
    arrays: list[Any] = [jnp.asarray(a) for a in c.arrays()]

    def apply(params: Any, buffers: Any, *inputs: Any) -> Any:
        params, wrapped, inputs = env.j2t_iso((params, dict(buffers), inputs))
        with env:
            out = _call(module, {**params, **wrapped}, inputs, c.method)
        return env.t2j_iso((out, wrapped))

    calls = TRAINING_CALLS if c.train and buffers else 1
    return _run_pure(apply, params, buffers, arrays, calls, True, c.differentiable)


def _call(module: nn.Module, tensors: dict, inputs: tuple, method: str) -> Any:
    with torch.nn.utils.stateless._reparametrize_module(module, tensors, tie_weights=True):
        result = getattr(module, method)(*inputs)
        for name in list(tensors):
            path, _, key = name.rpartition(".")
            owner = module.get_submodule(path)
            if key in owner._buffers:
                tensors[name] = owner._buffers[key]
    for name in [n for n, p in module.named_parameters() if p.requires_grad]:
        tensors.pop(name, None)
    return result


def differences(got: Result, want: Result, rtol: float) -> list[str]:
    """Differences in words; empty where everything agrees."""
    reported = []
    if len(got.outputs) != len(want.outputs):
        return [f"{len(got.outputs)} outputs, torch {len(want.outputs)}"]
    for i, (a, b) in enumerate(zip(got.outputs, want.outputs, strict=True)):
        reported += _difference(f"output {i}", a, b, rtol)
    for kind, ours, theirs in (
        ("gradient of", got.gradients, want.gradients),
        ("buffer", got.buffers, want.buffers),
    ):
        if set(ours) != set(theirs):
            reported.append(f"{kind} names {sorted(set(ours) ^ set(theirs))}")
            continue
        for name, value in theirs.items():
            # A gradient sums over more terms than the value it belongs to.
            factor = 5 if kind == "gradient of" else 1
            reported += _difference(f"{kind} {name}", ours[name], value, rtol * factor)
    return reported


def _difference(what: str, a: np.ndarray, b: np.ndarray, rtol: float) -> list[str]:
    if a.shape != b.shape:
        return [f"{what}: shape {a.shape}, torch {b.shape}"]
    if b.dtype.kind in "iub":
        return [] if np.array_equal(a, b) else [f"{what}: other integers"]
    nan = np.isnan(b)
    if not np.array_equal(np.isnan(a), nan):
        return [f"{what}: NaN elsewhere"]
    infinite = np.isinf(b)
    if not np.array_equal(a[infinite], b[infinite]):
        return [f"{what}: infinity elsewhere"]
    finite = ~(nan | infinite)
    if not finite.any():
        return []
    error = np.abs(a[finite] - b[finite]).max()
    scale = max(1.0, float(np.abs(b[finite]).max()))
    return [f"{what}: off by {error:.2g}"] if not error <= rtol * scale else []
