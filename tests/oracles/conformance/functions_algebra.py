"""Functions: complex numbers, Fourier transforms, linear algebra, and what op_db found."""

import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.oracles.conformance.registry import fixed, fn, ints, kinks, normal, positive

X = normal(3, 4, 5)
K = kinks(4, 6)

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
