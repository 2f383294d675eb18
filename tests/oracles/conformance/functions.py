"""Functions: activations and losses at their kinks, indexing, reductions, dtypes, constants."""
# ruff: noqa: PLW0108  (what stands below is named late)

import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.oracles.conformance.registry import bools, fixed, fn, ints, kinks, normal, positive

X = normal(3, 4, 5)
K = kinks(4, 6)

# ---- activations, on whole numbers: slopes at zero and at bounds are torch's

for _f in (
    F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.hardtanh,
    F.hardswish, F.hardsigmoid, F.softplus, F.softsign, F.tanhshrink, F.softshrink, F.hardshrink,
    F.logsigmoid,
    torch.sigmoid, torch.tanh, torch.abs, torch.sign, torch.sinc, torch.round, torch.frac,
):  # fmt: skip
    fn("activation", _f.__name__, _f, K)
fn("activation", "gelu, tanh form", lambda x: F.gelu(x, approximate="tanh"), K, bfloat16=True)
fn("activation", "prelu at zero", lambda w, x: F.prelu(x, w), K, w=(6,))
fn("activation", "threshold", lambda x: F.threshold(x, 1.0, 7.0), K)
fn("activation", "glu", F.glu, K)
fn("activation", "clamp at its bounds", lambda x: x.clamp(0, 1), K)
fn(
    "activation",
    "clamp between tensors",
    lambda x, a, b: torch.clamp(x, a, b),
    K,
    kinks(4, 6),
    kinks(4, 6),
)
fn("activation", "clamp, integer bounds above int8", lambda x: x.clamp(max=2**30), K)
fn("activation", "softmax", lambda x: x.softmax(1), X, bfloat16=True)
fn("activation", "log_softmax", lambda x: x.log_softmax(-1), X, bfloat16=True)
fn(
    "activation",
    "softmax of a row of -inf and numbers",
    lambda x: x.masked_fill(x < 0, -torch.inf).softmax(0),
    K,
)
fn("activation", "dropout in evaluation", lambda x: F.dropout(x, 0.5, False), X)

# ---- losses

_T = normal(3, 4, 5)
for _name, _f in (
    ("l1_loss", F.l1_loss),
    ("mse_loss", F.mse_loss),
    ("smooth_l1_loss", F.smooth_l1_loss),
    ("huber_loss", F.huber_loss),
    ("soft_margin_loss", lambda x, y: F.soft_margin_loss(x, y.detach().sign())),
    ("poisson_nll_loss", F.poisson_nll_loss),
):
    fn("loss", f"{_name}, ties", _f, kinks(4, 6), kinks(4, 6))
fn("loss", "l1_loss, sum", lambda x, y: F.l1_loss(x, y, reduction="sum"), X, _T, bfloat16=True)
fn(
    "loss",
    "cross_entropy, ignored index, smoothing",
    lambda x, t: F.cross_entropy(x, t - 1, ignore_index=-1, label_smoothing=0.1),
    normal(6, 5),
    ints(6, 6),
)
fn(
    "loss",
    "cross_entropy, class weights",
    lambda w, x, t: F.cross_entropy(x, t, w.detach().abs()),
    normal(6, 5),
    ints(5, 6),
    w=(5,),
)
fn("loss", "cross_entropy, per pixel", F.cross_entropy, normal(2, 5, 4, 3), ints(5, 2, 4, 3))
fn(
    "loss",
    "cross_entropy, probabilities",
    lambda x, t: F.cross_entropy(x, t.softmax(1)),
    normal(6, 5),
    normal(6, 5),
)
fn("loss", "nll_loss", lambda x, t: F.nll_loss(x.log_softmax(1), t), normal(6, 5), ints(5, 6))
fn(
    "loss",
    "binary_cross_entropy at 0 and 1",
    lambda x, t: F.binary_cross_entropy(x, t),
    fixed([0, 1, 0, 1, 0.3]),
    fixed([0, 1, 1, 0, 0.6]),
)
fn(
    "loss",
    "binary_cross_entropy_with_logits, pos_weight",
    lambda x, t: F.binary_cross_entropy_with_logits(x, t, pos_weight=torch.full((6,), 2.0)),
    K,
    positive(4, 6),
)
fn(
    "loss",
    "kl_div",
    lambda x, t: F.kl_div(x.log_softmax(1), t.softmax(1), reduction="batchmean"),
    normal(4, 6),
    normal(4, 6),
)
fn(
    "loss",
    "kl_div with zero targets",
    lambda x, t: F.kl_div(x.log_softmax(1), t.relu()),
    normal(4, 6),
    kinks(4, 6),
)
fn(
    "loss",
    "gaussian_nll_loss",
    lambda x, t, v: F.gaussian_nll_loss(x, t, v),
    X,
    _T,
    positive(3, 4, 5),
)
fn(
    "loss",
    "cosine_embedding_loss",
    lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(4)),
    normal(4, 6),
    normal(4, 6),
)
fn("loss", "triplet_margin_loss", F.triplet_margin_loss, normal(4, 6), normal(4, 6), normal(4, 6))
fn("loss", "hinge", lambda x: F.relu(1 - x).mean(), K)
fn("loss", "cosine_similarity", F.cosine_similarity, normal(4, 6), normal(4, 6))
fn("loss", "pairwise_distance", F.pairwise_distance, normal(4, 6), normal(4, 6))
fn("loss", "cdist", torch.cdist, normal(3, 4), normal(5, 4))
fn(
    "loss",
    "cdist, infinity norm",
    lambda x, y: torch.cdist(x, y, p=float("inf")),
    normal(3, 4),
    normal(5, 4),
)
fn("loss", "norm at zero", lambda x: (x * 0).norm() + x.norm(1), K)
fn(
    "loss",
    "ctc_loss",
    lambda x: F.ctc_loss(
        x.log_softmax(2), torch.ones(2, 3).long(), torch.tensor([6, 6]), torch.tensor([3, 3])
    ),
    normal(6, 2, 5),
)

# ---- indexing and writing by index

_I = ints(5, 3, 4, 2)
fn("indexing", "gather", lambda x, i: x.gather(2, i), X, _I)
fn(
    "indexing",
    "scatter",
    lambda x, i, s: x.scatter(2, i, s),
    X,
    fixed([[[0, 1]] * 4] * 3, "int32"),
    normal(3, 4, 2),
)
fn("indexing", "scatter_add", lambda x, i, s: x.scatter_add(2, i, s), X, _I, normal(3, 4, 2))
fn(
    "indexing",
    "scatter_reduce amax",
    lambda x, i, s: x.scatter_reduce(2, i, s, "amax"),
    X,
    _I,
    normal(3, 4, 2),
)
fn("indexing", "index_select", lambda x, i: x.index_select(1, i), X, ints(4, 6))
fn(
    "indexing",
    "index_add",
    lambda x, i, s: x.index_add(1, i, s, alpha=2),
    X,
    ints(4, 6),
    normal(3, 6, 5),
)
fn(
    "indexing",
    "index_put accumulate",
    lambda x, i, s: x.index_put((i,), s, accumulate=True),
    normal(5, 2),
    ints(5, 8),
    normal(8, 2),
)
fn(
    "indexing",
    "index_copy",
    lambda x, s: x.index_copy(0, torch.tensor([2, 0]), s),
    X,
    normal(2, 4, 5),
)
fn("indexing", "index_fill", lambda x: x.index_fill(1, torch.tensor([0, 2]), 5.0), X)
fn(
    "indexing",
    "two index tensors with a slice between",
    lambda x, i, j: x[i, :, j],
    X,
    ints(3, 6),
    ints(5, 6),
)
fn("indexing", "negative indices", lambda x: x[torch.tensor([-1, 0]), -2], X)
fn("indexing", "None, ellipsis, steps", lambda x: x[None, ..., ::2, 1:-1:3], X)
fn("indexing", "masked_fill", lambda x, m: x.masked_fill(m, 3.0), X, bools(3, 4, 5))
fn(
    "indexing",
    "masked_scatter",
    lambda x, m, s: x.masked_scatter(m, s),
    X,
    bools(3, 4, 5),
    normal(3, 4, 5),
)
fn("indexing", "boolean write of a number", lambda x, m: _write(x, m, 2.0), X, bools(3, 4, 5))
fn("indexing", "boolean read, reduced", lambda x, m: x[m].exp().mean(), X, bools(3, 4, 5))
fn(
    "indexing",
    "boolean read, returned",
    lambda x, m: x[m],
    X,
    bools(3, 4, 5),
    refused="depends on values",
)
fn("indexing", "nonzero", lambda x: x.nonzero(), X, refused="depends on values")
fn("indexing", "where", lambda x, m, y: torch.where(m, x, y), X, bools(3, 4, 5), normal(5))
fn(
    "indexing",
    "where with numbers",
    lambda x: torch.where(x > 0, x, 0.0) + torch.where(x > 0, 1, -1),
    X,
)
fn("indexing", "take_along_dim", lambda x, i: torch.take_along_dim(x, i, 2), X, _I)
fn(
    "indexing",
    "tril, triu, diagonal",
    lambda x: x.tril(1) + x.triu(-1) + x.diagonal(0, 1, 2).sum(),
    X,
)
fn("indexing", "roll, flip, rot90", lambda x: x.roll((1, -2), (0, 2)).flip(1).rot90(1, (1, 2)), X)
fn(
    "indexing",
    "repeat, repeat_interleave, tile",
    lambda x: x.repeat(1, 2, 1).repeat_interleave(3, 0).tile(2),
    X,
)
fn(
    "indexing",
    "meshgrid, stack, cat",
    lambda x: torch.cat(torch.meshgrid(x, x, indexing="ij")) * torch.stack([x, -x]).sum(),
    normal(4),
)


def _write(x: torch.Tensor, mask: torch.Tensor, value: float) -> torch.Tensor:
    y = x.clone()
    y[mask] = value
    return y * x


# ---- reductions and order

fn("reduction", "var, std, unbiased and not", lambda x: x.var(1) + x.std(2, correction=0).sum(), X)
fn(
    "reduction",
    "logsumexp, cumsum, cumprod",
    lambda x: x.logsumexp(1).sum() + x.cumsum(2) * x.cumprod(2),
    X,
)
fn("reduction", "logcumsumexp", lambda x: x.logcumsumexp(1), X)
fn("reduction", "max with indices, ties", lambda x: x.max(1), K)
fn("reduction", "max of everything, ties", lambda x: x.max(), K)
fn("reduction", "maximum of two, ties", torch.maximum, kinks(4, 6), kinks(4, 6), bfloat16=True)
fn(
    "reduction",
    "minimum of two, ties, NaN",
    torch.minimum,
    fixed([0.0, -0.0, 2.0, torch.nan, 1.0, torch.nan, torch.inf]),
    fixed([0.0, 0.0, 1.0, 1.0, torch.nan, torch.nan, torch.inf]),
    bfloat16=True,
)
fn(
    "reduction",
    "aminmax and norms of order ±inf, ties",
    lambda x: (
        x.aminmax(dim=1),
        torch.linalg.vector_norm(x, torch.inf, 1),
        torch.linalg.vector_norm(x + 4, -torch.inf, 1),
    ),
    K,
    bfloat16=True,
    derivative_since=(2, 13),
)
fn("reduction", "cummax, ties", lambda x: x.cummax(1), K)
fn("reduction", "median of everything, ties", lambda x: x.median(), K)
fn(
    "reduction",
    "sort, stable, descending",
    lambda x: x.sort(dim=1, descending=True, stable=True),
    K,
)
fn("reduction", "topk", lambda x: x.topk(2), normal(4, 6))
fn("reduction", "argmax, argmin, ties", lambda x: (x.argmax(1), x.argmin(0)), K)
fn("reduction", "prod with zeros", lambda x: x.prod(1), K)
fn("reduction", "quantile", lambda x: x.quantile(0.3, dim=1), X)
fn("reduction", "mean of integers is refused by torch too", lambda i: i.float().mean(), ints(5, 4))
fn(
    "reduction",
    "einsum",
    lambda x, y: torch.einsum("bij,bkj->bik", x, y),
    X,
    normal(3, 2, 5),
    bfloat16=True,
)
fn("reduction", "matmul broadcasting", torch.matmul, normal(2, 1, 3, 4), normal(5, 4, 2))
fn(
    "reduction",
    "baddbmm, addmm, outer",
    lambda a, b: (
        torch.baddbmm(a @ b, a, b, beta=0.5, alpha=2) + torch.outer(a[0, 0], b[0, :, 0]).sum()
    ),
    normal(2, 3, 4),
    normal(2, 4, 3),
)
fn(
    "reduction",
    "bucketize, searchsorted",
    lambda x: torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.5]), right=True),
    X,
)
fn(
    "reduction",
    "atan2 and hypot",
    lambda x, y: torch.atan2(x, y) + torch.hypot(x, y + 10),
    kinks(4, 6),
    kinks(4, 6),
)
fn(
    "reduction",
    "pow with tensor exponent at zero",
    lambda x, y: x.abs() ** y.abs(),
    kinks(4, 6),
    kinks(4, 6),
)
fn(
    "reduction",
    "fmod, remainder, floor_divide",
    lambda x: torch.fmod(x, 1.5) + torch.remainder(x, -1.5) + torch.floor_divide(x.detach(), 2),
    K,
)

# ---- dtypes

fn(
    "dtype",
    "0-dim tensors and numbers do not promote",
    lambda x: x.bfloat16() * torch.tensor(1.5) + 0.1,
    X,
    tolerance=400,
)  # bfloat16: 8 bits
fn(
    "dtype",
    "integer division",
    lambda i, j: (i / (j + 1), i // (j + 1), i % (j + 1)),
    ints(9, 6),
    ints(4, 6),
)
fn(
    "dtype",
    "float times int, bool arithmetic",
    lambda x, i, m: x[0, 0] * i + m,
    X,
    ints(9, 5),
    bools(5),
)
fn(
    "dtype", "in-place keeps the dtype", lambda x: _in_place_dtype(x), X, tolerance=400
)  # bfloat16: 8 bits
fn("dtype", "uint8 wraps", lambda i: (i.to(torch.uint8) * 100, i.to(torch.uint8) - 5), ints(9, 6))
fn(
    "dtype",
    "comparison, logic, any, all",
    lambda x: ((x > 0) & (x < 1) | ~(x == 0), (x > 2).any(1), (x > -9).all()),
    X,
)
fn("dtype", "bit operations, shifts", lambda i: (i & 6) | (i ^ 3) << 2 >> 1, ints(9, 6))
fn(
    "dtype", "to(float16) and back", lambda x: x.half().float(), X, tolerance=100
)  # float16: 11 bits
fn("dtype", "float64 refused", lambda x: x.double() * 2, X, refused="x64")
fn(
    "dtype",
    "float64 constant refused",
    lambda x: torch.ones(3, dtype=torch.float64) * x.sum(),
    X,
    refused="x64",
)
fn(
    "dtype",
    "integer constant beyond int32 refused",
    lambda i: i + torch.tensor([2**40, 1, 2, 3, 4, 5]),
    ints(9, 6),
    refused="int32",
)
fn(
    "dtype",
    "NaN and infinity",
    lambda x: torch.nan_to_num(x / x, nan=2.0) + torch.isnan(x / x) + torch.isinf(1 / x),
    K,
)


def _in_place_dtype(x: torch.Tensor) -> torch.Tensor:
    y = x.bfloat16()
    y += x
    y *= torch.tensor(2, dtype=torch.int64)
    return y


# ---- complex numbers and Fourier transforms

fn("complex", "rfft2, irfft2", lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2, s=(4, 5)), X)
fn("complex", "fft, orthonormal", lambda x: torch.fft.fft(x, norm="ortho").abs(), X)
fn("complex", "fftshift, fft2 magnitude", lambda x: torch.fft.fftshift(torch.fft.fft2(x)).abs(), X)
fn(
    "complex",
    "stft",
    lambda x: torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True).abs(),
    normal(2, 32),
)
fn(
    "complex",
    "istft, window of values",
    lambda x, w: torch.istft(
        torch.complex(x, x.cos()), 8, 3, 6, window=w[0, :6].abs() + 0.5, length=19, normalized=True
    ),
    normal(2, 5, 8),
    normal(1, 6),
)
fn(
    "complex",
    "istft of one signal, not centred",
    lambda x: torch.istft(
        torch.complex(x, x.cos()), 8, 2, window=torch.ones(8), center=False, return_complex=True
    ),
    normal(8, 8),
)
fn(
    "distributions",
    "a mixture of normals",
    lambda x, y: torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=x),
        torch.distributions.Normal(x, F.softplus(x)),
    ).log_prob(y),
    normal(4, 3),
    normal(4),
)
fn(
    "distributions",
    "divergence and entropy",
    lambda x: (
        torch.distributions.kl_divergence(
            torch.distributions.Categorical(logits=x), torch.distributions.Categorical(logits=2 * x)
        )
        + torch.distributions.Dirichlet(x.exp()).entropy()
    ),
    normal(4, 3),
)
fn(
    "quantisation",
    "fake_quantize, tensor",
    lambda x: torch.fake_quantize_per_tensor_affine(x, 0.07, 3, -8, 7),
    normal(4, 9),
)
fn(
    "quantisation",
    "fake_quantize, channels",
    lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.tensor([0.07, 0.3, 0.1]), torch.tensor([0, 3, -2], dtype=torch.int32), 1, -4, 7
    ),
    normal(4, 3, 5),
)
fn(
    "complex",
    "polar, view_as_real, conj, angle",
    lambda x: torch.view_as_real(torch.polar(x.abs(), x).conj().resolve_conj()),
    X,
)
fn(
    "complex",
    "rotary embedding",
    lambda x: torch.view_as_real(
        torch.view_as_complex(x.reshape(3, 10, 2)) * torch.polar(torch.ones(10), torch.arange(10.0))
    ),
    X,
)
fn("complex", "abs of complex zero", lambda x: torch.complex(x, x * 0).abs(), K)

# ---- linear algebra

fn(
    "linear algebra",
    "inv, det, slogdet",
    lambda x: (
        torch.linalg.inv(x + 4 * torch.eye(4)).sum()
        + torch.linalg.det(x)
        + torch.linalg.slogdet(x)[1]
    ),
    normal(4, 4),
    tolerance=10,
)  # condition number ~10
fn(
    "linear algebra",
    "solve",
    lambda a, b: torch.linalg.solve(a + 4 * torch.eye(4), b),
    normal(4, 4),
    normal(4, 2),
    tolerance=5,
)
fn(
    "linear algebra",
    "cholesky",
    lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4)),
    normal(4, 4),
    tolerance=10,
)
fn(
    "linear algebra",
    "svdvals, matrix_norm",
    lambda x: torch.linalg.svdvals(x).sum() + torch.linalg.matrix_norm(x, "nuc"),
    normal(4, 3),
    tolerance=10,
)
fn(
    "linear algebra",
    "eigvalsh, upper triangle",
    lambda x: torch.linalg.eigvalsh(x, UPLO="U"),
    normal(4, 4),
    tolerance=10,
)
fn(
    "linear algebra",
    "cholesky_solve, cholesky_inverse",
    lambda x, b: (
        torch.cholesky_solve(b, x.tril() + 3 * torch.eye(4)),
        torch.cholesky_inverse(x.triu() + 3 * torch.eye(4), upper=True),
    ),
    normal(4, 4),
    normal(4, 2),
    tolerance=5,
)
fn(
    "linear algebra",
    "lu_factor, lu_solve, lu_unpack",
    lambda x, b: (
        torch.linalg.lu_solve(*torch.linalg.lu_factor(x + 3 * torch.eye(4)), b),
        torch.linalg.lu_solve(*torch.linalg.lu_factor(x + 3 * torch.eye(4)), b, adjoint=True),
        *torch.lu_unpack(*torch.linalg.lu_factor(x)),
    ),
    normal(4, 4),
    normal(4, 2),
    tolerance=20,
)
fn(
    "linear algebra",
    "eig, what no phase changes",
    lambda x: (torch.linalg.eig(x)[0].abs().sum(), torch.linalg.eig(x)[1].abs().sum()),
    normal(4, 4),
    tolerance=50,
)  # eigenvectors amplify rounding
fn(
    "linear algebra",
    "householder_product, ormqr",
    lambda a, tau, x: (
        torch.linalg.householder_product(a, tau),
        torch.ormqr(a, tau, x),
        torch.ormqr(a, tau, x.mT, left=False, transpose=True),
    ),
    normal(4, 3),
    positive(3),
    normal(4, 2),
    tolerance=5,
)
fn(
    "linear algebra",
    "empty matrices",
    lambda x: (torch.linalg.det(x[:0, :0]), *torch.linalg.slogdet(x[:0, :0]), x[:0, :0].inverse()),
    normal(4, 4),
)
fn(
    "linear algebra",
    "cov with weights",
    lambda x, w: torch.cov(x, fweights=torch.arange(1, 6), aweights=w),
    normal(3, 5),
    positive(5),
)

# ---- found by torch's own database of operators (`benchmarks.opinfo`)


def _index_reduce(x: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is in beta state
        return x.index_reduce(0, *arguments, **options)


fn("database", "elu, celu, selu far below zero", lambda x: (F.elu(x), F.celu(x), F.selu(x)),
   fixed([-12.0, -9.5, -0.5, 0.0, 2.0]))  # fmt: skip
fn("database", "fmod, remainder", lambda x, y: (torch.fmod(x, y), torch.remainder(x, y)), K,
   fixed(np.resize([2.5, -1.5, 0.75], (4, 6))), bfloat16=True)  # fmt: skip
fn("database", "i0, i0e, i1, i1e", lambda x: (
    torch.special.i0(x), torch.special.i0e(x), torch.special.i1(x), torch.special.i1e(x)
), kinks(4, 6))  # fmt: skip
fn("database", "polygamma below zero", lambda x: tuple(
    torch.polygamma(n, x + 0.3) for n in (1, 2, 3)
), kinks(4, 6), tolerance=5)  # fmt: skip
fn("database", "zeta below zero", lambda x: torch.special.zeta(3.0, x.detach() + 0.3), K)
fn("database", "nextafter", torch.nextafter, normal(5), normal(5), derivative_since=(2, 13))
fn("database", "an aten overload by its name",
   lambda x: torch.ops.aten._safe_softmax.default(x, 1), X)  # fmt: skip
fn("database", "softmax of a number", lambda x: x.sum().softmax(0), X)
fn("database", "combinations", lambda x: torch.combinations(x, 3), normal(5))
fn("database", "cosine_similarity of one element",
   lambda x, y: F.cosine_similarity(x, y, dim=0), normal(1), normal(1))  # fmt: skip
fn("database", "index_reduce, scatter_reduce by products", lambda x, y: (
    _index_reduce(x, torch.tensor([2, 0, 2]), y, "prod"),
    x.scatter_reduce(0, torch.tensor([[0, 1, 2]]), y[:1], "prod", include_self=False),
), kinks(4, 3), kinks(3, 3))  # fmt: skip
fn("database", "index_reduce of integers without self", lambda i: _index_reduce(
    i[:4] * 0 + 1, i % 4, i, "amin", include_self=False), ints(9, 5))  # fmt: skip
fn("database", "whole powers", lambda i: 3 ** (i - 4), ints(9, 5))
fn("database", "Legendre and Chebyshev polynomials", lambda x: tuple(
    f(x.detach(), torch.arange(6))
    for f in (torch.special.legendre_polynomial_p, torch.special.chebyshev_polynomial_v,
              torch.special.shifted_chebyshev_polynomial_u)
), positive(6))  # fmt: skip
if hasattr(F, "linear_cross_entropy"):  # torch 2.13 and newer
    fn("database", "linear_cross_entropy", lambda x, w: F.linear_cross_entropy(
        x, w, torch.arange(3), options=None), normal(3, 4), normal(5, 4))  # fmt: skip
fn("database", "pdist of equal points", lambda x: F.pdist(torch.cat([x, x[:1]])), normal(4, 3))
fn("database", "rrelu in evaluation", F.rrelu, K)
fn("database", "convolution of integers, transposed",
   lambda i: F.conv_transpose1d(i.reshape(1, 2, 4), torch.arange(12).reshape(2, 2, 3), stride=2),
   ints(9, 8))  # fmt: skip
fn("database", "transposed convolution, padding of a stride", lambda w, x: F.conv_transpose1d(
    x, w, stride=1, dilation=3, output_padding=2), normal(2, 3, 5), w=(3, 2, 2))  # fmt: skip
fn("database", "fractional_max_pool2d", lambda x: F.fractional_max_pool2d(
    x, 2, output_size=(3, 4), _random_samples=torch.tensor([[[0.3, 0.8], [0.5, 0.1]]])
), normal(1, 2, 7, 9))  # fmt: skip
fn("database", "booleans", lambda i: (
    (i > 3).sigmoid(), (i > 3).erf(), (i > 3).sign(), (i > 3).rsqrt(),
    (i > 3).sort(descending=True).values,
), ints(9, 5))  # fmt: skip
