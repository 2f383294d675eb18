"""Triangular systems on CPUs against SciPy and torch, and that programs full of them end."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from jaxsr.interop.lowerings.triangular_solve import solve
from jaxsr.interop.module import to_jax


def system(rows: int, columns: int, dtype: str, *, batch: tuple[int, ...] = (2, 3)):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((*batch, rows, rows))
    b = rng.standard_normal((*batch, rows, columns))
    if dtype.startswith("complex"):
        a, b = a + 1j * rng.standard_normal(a.shape), b + 1j * rng.standard_normal(b.shape)
    return (a + 2 * rows**0.5 * np.eye(rows)).astype(dtype), b.astype(dtype)


@pytest.mark.sample(8)
@pytest.mark.parametrize(("rows", "dtype"), [(1, "float32"), (7, "complex64"), (130, "float32")])
@pytest.mark.parametrize("left_side", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("trans", ["N", "T", "C"])
def test_every_form_against_scipy(rows, dtype, left_side, lower, trans):
    a, b = system(rows, 4, dtype)
    unit_diagonal = lower
    if unit_diagonal:
        a = a / (4 * rows**0.5)
    wide = np.complex128 if dtype == "complex64" else np.float64
    # x op(a) = bᵀ is op(a)ᵀ xᵀ = b; SciPy has the left form, and no aᵀ conjugated alone.
    matrix = {"N": a, "T": a.swapaxes(-1, -2), "C": a.swapaxes(-1, -2).conj()}[trans]
    is_lower = lower == (trans == "N")
    matrix, is_lower = (matrix, is_lower) if left_side else (matrix.swapaxes(-1, -2), not is_lower)
    expected = np.stack([
        scipy.linalg.solve_triangular(
            one.astype(wide), right.astype(wide), lower=is_lower, unit_diagonal=unit_diagonal
        )
        for one, right in zip(matrix.reshape(-1, rows, rows), b.reshape(-1, rows, 4), strict=True)
    ]).reshape(b.shape)  # fmt: skip
    solved = solve(
        jnp.asarray(a),
        jnp.asarray(b if left_side else b.swapaxes(-1, -2)),
        left_side=left_side,
        lower=lower,
        transpose_a=trans != "N",
        conjugate_a=trans == "C",
        unit_diagonal=unit_diagonal,
    )
    solved = solved if left_side else solved.mT
    np.testing.assert_allclose(solved, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())


class Solves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(system(70, 70, "float32")[0]))

    def forward(self, b: torch.Tensor) -> torch.Tensor:
        x = torch.linalg.solve_triangular(self.a.tril(), b, upper=False)
        return x + torch.linalg.solve(self.a, b)


def test_module_and_gradients_against_torch():
    module = Solves()
    b = torch.tensor(system(70, 5, "float32")[1])
    module(b).square().sum().backward()
    jax_module = to_jax(module)

    def loss(params, b):
        return (jax_module.apply(params, {}, b)[0] ** 2).sum()

    gradient = jax.jit(jax.grad(loss))(jax_module.params, jnp.asarray(b.numpy()))["a"]
    expected = module.a.grad.numpy()  # type: ignore[union-attr]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_systems_side_by_side_end():
    """With LAPACK the program stops at once on two cores, or within a few calls."""
    program = textwrap.dedent("""
        import jax, jax.numpy as jnp, numpy as np
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 2)
        import jaxsr.interop.lowerings.triangular_solve
        from jax.sharding import Mesh, PartitionSpec as P

        a = jnp.eye(64) + jnp.tril(jnp.ones((8, 16, 64, 64)), -1) / 64
        def solve(a):
            parts = [jax.lax.linalg.triangular_solve(one, one, left_side=True) for one in a]
            return jax.lax.psum(sum(part.sum() for part in parts), "d")
        mesh = Mesh(np.array(jax.devices()), ("d",))
        step = jax.jit(jax.shard_map(solve, mesh=mesh, in_specs=P(None, "d"), out_specs=P()))
        for _ in range(40):
            step(a).block_until_ready()
        assert "lapack" not in step.lower(a).as_text()
    """)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100, env=environment)
