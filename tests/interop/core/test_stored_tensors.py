"""A decision and the weight that belongs to it come from one value."""

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax

SPLITS = {
    "floor": lambda x: (torch.floor(x).long(), x - torch.floor(x)),
    "long": lambda x: (x.long(), x - x.long()),
    "frac": lambda x: (x.to(torch.int32).long(), torch.frac(x)),
    "remainder": lambda x: (torch.div(x, 1, rounding_mode="floor").long(), torch.remainder(x, 1.0)),
}


class Bilinear(nn.Module):
    """Reads pictures at places that a matrix makes, by hand."""

    def __init__(self, split):
        super().__init__()
        self.split = split

    def forward(self, image, slopes):
        n, c, h, w = image.shape
        rows, columns = torch.arange(h, dtype=torch.float32)[:, None], torch.arange(w).float()
        a = slopes[:, :, None, None]
        (y, down), (x, across) = (
            self.split(a[:, k] * rows + a[:, k + 1] * columns + a[:, k + 2]) for k in (0, 3)
        )
        total = 0
        for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
            place = (y + dy).clamp(0, h - 1) * w + (x + dx).clamp(0, w - 1)
            index = place.flatten(1)[:, None].expand(-1, c, -1)
            pixels = torch.gather(image.flatten(2), 2, index).view(n, c, h, w)
            weight = (down if dy else 1 - down) * (across if dx else 1 - across)
            total = total + pixels * weight[:, None]
        return total


@pytest.mark.parametrize("kernels", ["native", "xla"])
@pytest.mark.parametrize("split", SPLITS)
def test_a_sampler_by_hand_is_torchs(split, kernels, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", kernels)
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (2, 2, 40, 50)).astype(np.float32)
    module = Bilinear(SPLITS[split])
    model = to_jax(module)
    run = jax.jit(lambda slopes: model.apply(model.params, model.buffers, image, slopes)[0])
    for _ in range(4):
        slopes = np.round(rng.uniform(0.1, 1, (2, 6)), 1).astype(np.float32)
        expected = module(torch.from_numpy(image), torch.from_numpy(slopes))
        # Positions that round otherwise by one step move a picture by 1e-3.
        np.testing.assert_allclose(run(slopes), expected, atol=2e-4)


class TwoReaders(nn.Module):
    """A gradient taken in forward, of readers before and after the operator that stores."""

    def __init__(self, later):
        super().__init__()
        self.later = later

    def forward(self, x):
        h = x * 1.5
        first = torch.sin(h)
        (slope,) = torch.autograd.grad(
            (first + self.later(h)).sum(), h, create_graph=True, retain_graph=True
        )
        return slope


@pytest.mark.parametrize(
    "later", [nn.LayerNorm(64), lambda h: h - torch.floor(h)], ids=["layer norm", "floor"]
)
def test_a_gradient_in_forward_counts_all_readers(later):
    x = np.random.default_rng(0).random((512, 64), np.float32)
    module = TwoReaders(later)
    model = to_jax(module)
    got, _ = model.apply(model.params, model.buffers, x)
    expected = module(torch.from_numpy(x).requires_grad_()).detach()
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_a_maximum_is_found_among_its_elements():
    class Peaks(nn.Module):
        def forward(self, a, b, c):
            x = a * b + c
            return (x == x.amax(1, keepdim=True)).float().sum(1)

    a, b, c = np.round(np.random.default_rng(1).random((3, 64, 300)), 2).astype(np.float32)
    model = to_jax(Peaks())
    run = jax.jit(lambda *arrays: model.apply(model.params, model.buffers, *arrays)[0])
    assert (np.asarray(run(a, b, c)) >= 1).all()


def test_a_sum_with_a_factor_is_not_a_whole_number():
    """It is stored like any other value; whole numbers round alike and are not."""

    class Half(nn.Module):
        def forward(self, x):
            place = torch.add(x.floor(), x.floor(), alpha=0.3)
            shifted = x.floor() + 1
            return place.floor(), place - place.floor(), shifted.floor()

    model = to_jax(Half())
    x = np.random.default_rng(0).random((8, 8), np.float32) * 9
    program = jax.make_jaxpr(lambda x: model.apply(model.params, model.buffers, x)[0])(x)
    assert str(program).count("jaxsr_stored") == 2  # x and place, not shifted
    for ours, theirs in zip(
        model.apply(model.params, model.buffers, x)[0], Half()(torch.from_numpy(x)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
