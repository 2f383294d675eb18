"""torch's own database of operators and sample inputs (OpInfo), run through `to_jax`.

Some 600 operators, a few samples each, outputs and gradients against torch on the CPU, on torch's
samples and on the same rounded to whole numbers (zeros, ties, bounds). Takes several minutes.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from jaxsr.interop import UnsupportedTorchError, to_jax

pytest.importorskip("expecttest", reason="torch's operator database imports expecttest")
pytestmark = pytest.mark.slow

SAMPLES = 3
UNINITIALISED = "values are whatever memory holds"
TIES = "which of equal elements comes first is torch's secret"
POLE = "at or beyond a pole torch and XLA choose different infinities or NaN"
DIFFERENT = {
    "empty": UNINITIALISED,
    "empty_like": UNINITIALISED,
    "empty_strided": UNINITIALISED,
    "empty_permuted": UNINITIALISED,
    "new_empty": UNINITIALISED,
    "new_empty_strided": UNINITIALISED,
    "topk": TIES,
    "kthvalue": TIES,
    "mode": TIES,
    "median": TIES,
    "nanmedian": TIES,
    "sort": TIES,
    "argsort": TIES,
    "msort": TIES,
    "nn.functional.multi_margin_loss": "slope on the margin itself",
    "nn.functional.multilabel_margin_loss": "slope on the margin itself",
    "mvlgamma": POLE,
    "lgamma": POLE,
    "digamma": POLE,
    "logdet": POLE,
    "linalg.slogdet": POLE,
    "__rpow__": POLE,
    "hypot": "torch's gradient at the origin is NaN, ours 0",
    "linalg.eigh": "signs of eigenvectors are free",
    "linalg.eig": "signs of eigenvectors are free",
    "linalg.svd": "signs of singular vectors are free",
    "svd": "signs of singular vectors are free",
    "lu": "pivots of a singular matrix",
    "linalg.lu_factor_ex": "pivots of a singular matrix",
    "nn.functional.pdist": "on whole numbers coordinates tie",
    "special.ndtri": POLE,
    "linalg.lu": "pivots of a singular matrix",
    "lu_unpack": "int32 inputs show as int64, which torch refuses here",
    "lu_solve": "int32 inputs show as int64, which torch refuses here",
    "linalg.lu_solve": "int32 inputs show as int64, which torch refuses here",
    "linalg.norm": "on rounded matrices singular values coincide",
    "linalg.cholesky": "torch's gradient of the unread triangle",
    "linalg.cholesky_ex": "torch's gradient of the unread triangle",
    "linalg.pinv": "torch's gradient for matrices declared Hermitian",
    "special.log_ndtr": POLE,
}
RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "svd_lowrank",
    "pca_lowrank", "nn.functional.multi_head_attention_forward", "nn.functional.gumbel_softmax",
}  # fmt: skip


def operators() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]


class Operator(nn.Module):
    def __init__(self, op: Any, leaves: list, tree: Any, places: list[int]) -> None:
        super().__init__()
        self.call, self.tree, self.places = op, tree, places
        self.leaves = [None if i in places else leaf for i, leaf in enumerate(leaves)]

    def forward(self, *tensors: torch.Tensor) -> list:
        leaves = list(self.leaves)
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        out = pytree.tree_leaves(self.call(*args, **kwargs))
        return [t for t in out if isinstance(t, torch.Tensor)]


def compare(op: Any, sample: Any, rounded: bool) -> str | None:
    """What differs for one sample; None where all agrees or either side refuses."""
    leaves, tree = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i].detach().clone() for i in places]
    if any(t.layout != torch.strided or t.dtype == torch.float64 for t in tensors):
        return None
    if rounded:
        tensors = [(t / 2).round().clamp(-3, 3) if t.is_floating_point() else t for t in tensors]
    module = Operator(op.op, leaves, tree, places)
    inputs = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    try:
        want = module(*inputs)
        chosen = [i for i, t in enumerate(inputs) if t.requires_grad]
        weights = [torch.randn(t.shape, generator=torch.Generator().manual_seed(1)) for t in want]
        pairs = [
            (t, w)
            for t, w in zip(want, weights, strict=True)
            if t.requires_grad and t.is_floating_point()
        ]
        grads = None
        if pairs:
            given = torch.autograd.grad(
                [t for t, _ in pairs],
                [inputs[i] for i in chosen],
                [w for _, w in pairs],
                allow_unused=True,
            )
            grads = [
                torch.zeros_like(inputs[i]) if g is None else g
                for i, g in zip(chosen, given, strict=True)
            ]
    except Exception:
        return None
    learns = [t.requires_grad and t.is_floating_point() for t in want]
    arrays = [jnp.asarray(t.numpy()) for t in tensors]

    def loss(picked: list[jax.Array]) -> tuple[jax.Array, Any]:
        full = list(arrays)
        for i, a in zip(chosen, picked, strict=True):
            full[i] = a
        out, _ = to_jax(module).apply({}, {}, *full)
        total = sum(
            (o * w.numpy()).sum() for o, w, on in zip(out, weights, learns, strict=True) if on
        )
        return jnp.asarray(total, jnp.float32), out

    try:
        picked = [arrays[i] for i in chosen]
        # The programs are tiny: what takes time is optimising them.
        options: Any = {"xla_backend_optimization_level": 0}
        run = (lambda x: ([], loss(x)[1])) if grads is None else jax.grad(loss, has_aux=True)
        got, out = jax.jit(run).lower(picked).compile(compiler_options=options)(picked)
    except (UnsupportedTorchError, NotImplementedError):
        return None
    for i, (a, b) in enumerate(zip(out, want, strict=True)):
        if found := difference(np.asarray(a), b, 2e-4):
            return f"output {i}: {found}"
    for i, (a, b) in enumerate(zip(got, grads or [], strict=True)):
        if found := difference(np.asarray(a), b, 1e-3):
            return f"gradient {i}: {found}"
    return None


def difference(a: np.ndarray, tensor: torch.Tensor, rtol: float) -> str | None:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        tensor, a = tensor.float(), a.astype(np.float32)
    b = tensor.numpy(force=True)
    if a.shape != b.shape:
        return f"shape {a.shape}, torch {b.shape}"
    if b.dtype.kind in "iub":
        return None if np.array_equal(a, b) else "other integers"
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return "NaN or infinity elsewhere"
    a, b = a[np.isfinite(b)], b[np.isfinite(b)]
    if a.size and np.abs(a - b).max() > rtol * max(1.0, float(np.abs(b).max())):
        return f"off by {np.abs(a - b).max():.2g}"
    return None


@pytest.mark.parametrize("op", operators(), ids=lambda op: f"{op.name}.{op.variant_test_name}")
def test_operator_matches_torch(op):
    if op.name in RANDOM:
        pytest.skip("random: distributions are tested in test_module.py")
    if op.name in DIFFERENT:
        pytest.skip(DIFFERENT[op.name])
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))
    spread = np.linspace(0, len(samples) - 1, min(SAMPLES, len(samples))).round().astype(int)
    for i in spread:
        for rounded in (False, True):
            found = compare(op, samples[i], rounded)
            assert found is None, f"sample {i}{', rounded' if rounded else ''}: {found}"
