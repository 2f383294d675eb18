"""Constants one after the other, which XLA's simplifier would merge, against torch."""

import jax
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from jaxsr.interop import to_jax
from tests.interop.core.function_net import FunctionNet

MAGIC = 12582912.0
SMALL = np.array([3e-30, 2e-20, 5e-3, -1e-25, 0.0], np.float32)
PLAIN = np.array([100.0, -100.0, 0.3, 90.4, -95.5], np.float32)


def in_place(x):
    y = x * 1
    y += MAGIC
    y -= MAGIC
    return y


def rounded(x):
    return x + MAGIC - MAGIC


def in_a_checkpoint(x):
    return checkpoint(lambda y: y.view(5) - MAGIC, x + MAGIC, use_reentrant=False)


CHAINS = {
    "rounding": (PLAIN, rounded),
    "a sum of a negative number": (PLAIN, lambda x: (MAGIC + x) + (-MAGIC)),
    "from a number": (PLAIN, lambda x: (MAGIC - x) - MAGIC),
    "from a table": (PLAIN, lambda x: (torch.full((5,), MAGIC) - x) - MAGIC),
    "alpha": (PLAIN, lambda x: torch.sub(torch.add(x, MAGIC / 2, alpha=2), MAGIC)),
    "tensors": (PLAIN, lambda x: (x + torch.tensor(1e8)) - torch.tensor(1e8)),
    "tables": (PLAIN, lambda x: (x + torch.full((5,), 1e8)) - torch.full((5,), 1e8)),
    "a table of integers": (PLAIN, lambda x: x + torch.full((5,), 60000).to(torch.uint16) - 6e4),
    "in a checkpoint": (PLAIN, in_a_checkpoint),
    "in vmap": (PLAIN, torch.vmap(rounded)),
    "in place": (PLAIN, in_place),
    "views": (PLAIN, lambda x: (x + 1e8).reshape(5, 1).t()[0] - 1e8),
    "a copy": (PLAIN, lambda x: (x + 1e8).clone() - 1e8),
    "factors of one": (PLAIN, lambda x: (x + 1e8) * 1 - 1e8),
    "three": (PLAIN, lambda x: x + 6e7 + 6e7 - 1.2e8),
    "float16": (PLAIN, lambda x: ((x.half() + 2048) - 2048).float()),
    "float16 beyond its range": (PLAIN * 600, lambda x: ((x.half() - 60000) - 10000).float()),
    "bfloat16": (PLAIN, lambda x: ((x.bfloat16() + 1024) - 1024).float()),
    "great factors": (SMALL, lambda x: x * 1e20 * 1e20),
    "small factors": (1 / SMALL[:4], lambda x: x * 1e-25 * 1e-25),
    "divisors": (SMALL, lambda x: x / 1e-20 / 1e-20),
    "a factor and a divisor": (SMALL, lambda x: x * 1e20 / 1e-20),
    "factors of float16": (PLAIN / 1e4, lambda x: (x.half() * 1024 * 128).float()),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_constants(name):
    x, chain = CHAINS[name]
    leaf = torch.from_numpy(x).requires_grad_()
    expected = chain(leaf)
    expected.sum().backward()
    module = to_jax(FunctionNet(lambda _, x: chain(x)))

    def run(x):
        return module.apply({}, {}, x)[0]

    np.testing.assert_allclose(jax.jit(run)(x), expected.detach(), rtol=1e-6)
    rows = np.stack([x, x[::-1]])
    np.testing.assert_allclose(jax.jit(jax.vmap(run))(rows)[0], expected.detach(), rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: run(x).sum()))(x)
    assert leaf.grad is not None
    np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-6)


def test_chains_that_lose_nothing_stay_one_operation():
    module = to_jax(FunctionNet(lambda _, x: (x * 2 / 255 - 0.5) * 3 / 0.1 + 1))
    program = jax.make_jaxpr(lambda x: module.apply({}, {}, x)[0])(PLAIN)
    assert "optimization_barrier" not in str(program)
