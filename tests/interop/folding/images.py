"""Folded networks and the same ones plain, and what is in their programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from jax.interpreters import partial_eval as pe
from torch import nn

from jaxsr.interop.folding.policy import LaneFolding
from jaxsr.interop.module import to_jax

# Compiling is most of the time here, and nothing is computed twice.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
EVERYTHING = LaneFolding({2: 8, 4: 6, 8: 4, 64: 2}, fewest_lanes=16, offset_bytes=4)


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile(compiler_options=QUICK)(*arguments)


def each_way(network, shape, *foldings, dtype="float32", train=True, remat=(), seed=0):
    """Outputs, buffers and gradients, plain and with each of `foldings`."""
    random = np.random.default_rng(seed)
    x = jnp.asarray(random.standard_normal(shape, dtype=np.float32))
    results = []
    for folding in (None, *foldings):
        compute = None if dtype == "float32" else jnp.dtype(dtype)
        model = to_jax(network, lane_folding=folding, remat=remat, compute_dtype=compute)

        def loss(params, x, model=model):
            y, buffers = model.apply(params, model.buffers, x, train=train)
            return jnp.sin(3 * y.astype(jnp.float32)).mean(), (y, buffers)

        run = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        results.append(compiled(run, model.params, x))
    return results


def same(results):
    """Sums in another order: some tens of float32 roundings of the largest number about."""
    plain, *folded = results
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(plain[1]))
    for each in folded:
        assert jax.tree.structure(plain) == jax.tree.structure(each)
        for got, want in zip(jax.tree.leaves(each), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * max(scale, 1e-2))


def convolutions_of(network, shape, dtype, folding):
    """Columns of each kernel, and of each result the groups, of all convolutions that count."""
    model = to_jax(network, lane_folding=folding, compute_dtype=jnp.dtype(dtype))
    run = jax.make_jaxpr(lambda p, x: model.apply(p, model.buffers, x)[0])
    jaxpr = run(model.params, jnp.zeros(shape)).jaxpr
    jaxpr, _ = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    convolutions: list[Any] = [e for e in jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
    return [(e.invars[1].aval.shape[1], e.outvars[0].aval.shape[2]) for e in convolutions]


def turns(network, folding):
    """How often images are moved between torch's order and channels last."""
    model = to_jax(network, lane_folding=folding)
    run = jax.make_jaxpr(lambda p, x: model.apply(p, model.buffers, x, train=True)[0])
    equations = run(model.params, jnp.zeros((5, 3, 6, 16))).eqns
    shapes = [e.outvars[0].aval.shape for e in equations if e.primitive.name == "transpose"]
    # Not weights, nor maps of one or two channels, which are narrow folded as well.
    return len([s for s in shapes if len(s) == 4 and s[0] == 5 and not {1, 2} & set(s)])


class Plus(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Residual(nn.Module):
    """Three convolutions, what two of them make being read twice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in range(3)
        )

    def forward(self, x):
        one, two, three = self.convolutions
        first = F.silu(one(x))
        third = three(F.relu(two(first)))
        return (third + x) * (torch.sigmoid(third) - 0.5) + first
