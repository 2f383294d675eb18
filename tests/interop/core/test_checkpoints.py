"""`torch.utils.checkpoint` within a module: gradients and statistics are torch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from jaxsr.interop import to_jax

IMAGE = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


class Checkpointed(nn.Module):
    """Its first part is recomputed."""

    def __init__(self, reentrant: bool | None, *, after_a_layer: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 1) if after_a_layer else nn.Identity()
        self.part = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU())
        self.last = nn.Conv2d(3, 3, 1)
        self.reentrant = reentrant

    def forward(self, x):
        run = torch.utils.checkpoint.checkpoint
        return self.last(run(self.part, self.first(x), use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:.*use_reentrant", "ignore:None of the inputs")
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("by_input", [False, True])
@pytest.mark.parametrize("after_a_layer", [False, True])
@pytest.mark.parametrize("reentrant", [False, True, None])
def test_gradients_of_reentrant_checkpoints_are_torchs(reentrant, after_a_layer, by_input, jitted):
    torch.manual_seed(0)
    network = Checkpointed(reentrant, after_a_layer=after_a_layer)
    x = torch.from_numpy(IMAGE).requires_grad_(by_input)
    network(x).square().mean().backward()
    jm = to_jax(network)

    def loss(params, image):
        return (jm.apply(params, jm.buffers, image)[0] ** 2).mean()

    gradient = jax.grad(loss, argnums=(0, 1) if by_input else 0)
    result = (jax.jit(gradient) if jitted else gradient)(jm.params, jnp.asarray(IMAGE))
    of_params, of_image = result if by_input else (result, None)
    for name, parameter in network.named_parameters():
        want = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        np.testing.assert_allclose(of_params[name], want, atol=1e-6)
    if of_image is not None:
        assert x.grad is not None
        np.testing.assert_allclose(of_image, x.grad, atol=1e-6)
    is_cut = reentrant is not False and not after_a_layer and not by_input
    assert (network.get_parameter("part.0.weight").grad is None) == is_cut


def test_checkpoint_updates_statistics_once():
    """torch's checkpoint runs BatchNorm twice a step and updates its statistics twice."""

    class Block(nn.Module):
        def __init__(self, checkpoint: bool) -> None:
            super().__init__()
            self.norm, self.checkpoint = nn.BatchNorm2d(3), checkpoint

        def forward(self, x):
            if self.checkpoint:
                return torch.utils.checkpoint.checkpoint(self.norm, x * 1, use_reentrant=False)
            return self.norm(x * 1)

    a, b = (to_jax(Block(c)) for c in (True, False))
    x = jnp.asarray(IMAGE)
    for first, second in zip(
        a.apply(a.params, a.buffers, x, train=True)[1].values(),
        b.apply(b.params, b.buffers, x, train=True)[1].values(),
        strict=True,
    ):
        np.testing.assert_array_equal(first, second)
