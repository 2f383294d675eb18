"""Layer normalisation stores its input for all that read it, and computes what torch does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from jaxsr.interop import to_jax

WIDTH = 64


class Block(nn.Module):
    def __init__(self, remat: bool = False):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Linear(WIDTH, WIDTH)
        self.remat = remat

    def branch(self, x):
        return self.mlp(self.norm(x)).tanh()

    def forward(self, x):
        if self.remat:
            return x + checkpoint(self.branch, x, use_reentrant=False)
        return x + self.branch(x)


class Views(nn.Module):
    """The same memory, normalised as another shape."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        y = x + 1
        y[:, 0] *= 3
        view = y.reshape(2, -1, WIDTH)
        return self.norm(view).flatten() * y.flatten() * view.flatten()


def torch_gradient(module, x):
    tensor = torch.from_numpy(x).requires_grad_()
    out = module(tensor)
    (out**2).sum().backward()
    assert tensor.grad is not None
    return out.detach().numpy(), tensor.grad.numpy()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(*(Block() for _ in range(4))),
        nn.Sequential(Block(), Block(remat=True), Block()),
        Views(),
        nn.LayerNorm(WIDTH),
        nn.Sequential(nn.LayerNorm(WIDTH, elementwise_affine=False), nn.LayerNorm(WIDTH)),
    ],
    ids=["blocks", "checkpoint", "views", "alone", "twice"],
)
def test_equals_torch(module):
    x = np.random.default_rng(0).standard_normal((2, 16, 16, WIDTH)).astype(np.float32)
    model = to_jax(module)

    @jax.jit
    def run(x):
        out = model.apply(model.params, model.buffers, x, train=True)[0]
        return (out**2).sum(), out

    (_, out), gradient = jax.value_and_grad(run, has_aux=True)(jnp.asarray(x))
    expected, expected_gradient = torch_gradient(module, x)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-3)


def compiled(rows: int, blocks: int) -> str:
    model = to_jax(nn.Sequential(*(Block() for _ in range(blocks))))

    def loss(params, x):
        return (model.apply(params, model.buffers, x, train=True)[0] ** 2).sum()

    x = jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32)
    text = jax.jit(jax.grad(loss, (0, 1))).lower(model.params, x).compile().as_text()
    assert text is not None
    return text


def test_programs_grow_with_the_number_of_blocks_alone():
    """Without storing, each block's kernels repeat those of all blocks before."""
    small, large = (len(compiled(512, blocks).splitlines()) for blocks in (4, 16))
    assert large < 4.5 * small


def test_small_arrays_are_not_stored():
    assert "jaxsr_stored" not in compiled(4, 2)
    assert "jaxsr_stored" in compiled(512, 2)
