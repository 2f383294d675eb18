"""Functions: activations and losses at their kinks, indexing, reductions, dtypes, constants."""
# ruff: noqa: PLW0108  (what stands below is named late)

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
