"""SPAN: merged factors, exact tiles, and JAX equal to torch."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxsr.interop import to_jax
from jaxsr.models.span.config import SpanConfig
from jaxsr.models.span.generator import FactoredConv, Span, merge
from jaxsr.training.presets.span import SpanRun
from jaxsr.training.span import SpanTask
from tests.covering import every_pair


def make(**fields):
    torch.manual_seed(0)
    span = Span(SpanConfig(**{"width": 8, "depth": 2, **fields}))
    for parameter in span.upsampler.parameters():  # it starts at 0 and would hide everything
        torch.nn.init.uniform_(parameter, -0.3, 0.3)
    return span


def test_parameters_number_as_the_architecture_has_them():
    merged = Span(SpanConfig(expansion=None))
    # 20 convolutions 48→48 (18 in blocks, conv_2, upsampler), the first one, the 1×1 over four.
    want = 20 * (48 * 48 * 9 + 48) + (3 * 48 * 9 + 48) + (192 * 48 + 48)
    assert sum(p.numel() for p in merged.parameters()) == want == 426_288


@pytest.mark.parametrize("expansion", [1, 2])
def test_merged_factors_are_the_factors_in_turn(expansion):
    torch.manual_seed(0)
    conv = FactoredConv(3, 5, expansion=expansion).double()
    x = torch.rand(2, 3, 9, 7, dtype=torch.float64)
    # Away from the border, where the published training code pads before the first bias.
    want = conv.conv(x) + conv.sk(x)[..., 1:-1, 1:-1]
    torch.testing.assert_close(conv(x)[..., 1:-1, 1:-1], want)
    padded = conv(F.pad(x, (1, 1, 1, 1)))[..., 1:-1, 1:-1]
    torch.testing.assert_close(conv(x), padded)  # the border sees zeros of the input, no bias


def test_gradients_pass_through_the_merging():
    conv = FactoredConv(2, 2, expansion=2).double()
    x = torch.rand(1, 2, 4, 4, dtype=torch.float64)
    parameters = list(conv.parameters())
    torch.autograd.gradcheck(lambda *_: conv(x), parameters)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("scale", "channels", "expansion", "block"),
    every_pair([1, 2, 4], [1, 3], [2, None], ["attention", "residual"]),
)
def test_jax_equals_torch(scale, channels, expansion, block):
    span = make(scale=scale, channels=channels, expansion=expansion, block=block)
    low = np.random.default_rng(0).uniform(-1, 1, (2, channels, 9, 7)).astype(np.float32)
    want = span(torch.from_numpy(low)).detach().numpy()
    assert want.shape == (2, channels, 9 * scale, 7 * scale)
    converted = to_jax(span)
    got, _ = jax.jit(converted.apply)(converted.params, converted.buffers, low)
    np.testing.assert_allclose(got, want, atol=1e-5)  # the promise for images in [-1, 1]
    np.testing.assert_allclose(merge(span)(torch.from_numpy(low)).detach(), want, atol=1e-5)


@pytest.mark.parametrize("scale", [1, 2, 4])
def test_tiles_that_overlap_by_the_receptive_radius_give_the_whole_image(scale):
    span = make(scale=scale, depth=3).double()
    radius = span.config.receptive_radius
    low = torch.rand(1, 3, 20, 60, dtype=torch.float64)
    full = span(low)
    left = span(low[..., : 30 + radius])[..., : 30 * scale]
    right = span(low[..., 30 - radius :])[..., radius * scale :]
    torch.testing.assert_close(torch.cat((left, right), -1), full, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("block", "radius"), [("attention", 12), ("residual", 9)])
def test_the_receptive_radius_is_reached_and_not_passed(block, radius):
    span = make(scale=1, depth=3, block=block).double()
    low = torch.rand(1, 3, 41, 41, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(span(low)[..., 20, 20].sum(), low)
    rows = gradient.abs().sum((0, 1, 3)).nonzero().squeeze()
    assert (int(rows.min()), int(rows.max())) == (20 - radius, 20 + radius)
    assert span.config.receptive_radius == radius


def test_training_falls_below_bicubic():
    torch.manual_seed(0)
    model = SpanConfig(scale=2, width=12, depth=2)
    objective = SpanTask(SpanRun(model=model, crop=32, batch=4, steps=1)).networks()
    assert [phase.name for phase in objective.phases] == ["pretrain"]
    high = F.avg_pool2d(torch.rand(4, 3, 32, 32), 3, 1, 1) * 2 - 1
    low = F.interpolate(high, scale_factor=0.5, mode="bicubic", antialias=True, align_corners=False)
    batch, losses = {"low": low, "high": high}, []
    optimizer = torch.optim.Adam(objective.generator.parameters(), lr=2e-3)
    for _ in range(15):
        loss, _ = objective.pretrain_loss(objective.share(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    bicubic = F.interpolate(low, scale_factor=2, mode="bicubic", align_corners=False)
    assert losses[0] == pytest.approx(F.l1_loss(bicubic, high).item(), rel=1e-6)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": 3}, "scale must be one of 1, 2, 4, got 3"),
        ({"channels": 2}, "channels must be one of 1, 3, got 2"),
        ({"pixel_loss": "l2"}, "pixel_loss must be one of smooth_l1, l1, got 'l2'"),
        ({"block": "dense"}, "block must be one of attention, residual, got 'dense'"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"depth": 1}, "depth must be at least 2, got 1"),
        ({"expansion": 0}, "expansion must be at least 1, got 0"),
    ],
)
def test_a_wrong_value_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        SpanConfig(**change)


def test_other_channels_are_refused():
    with pytest.raises(ValueError, match=r"takes \(batch, 3, height, width\), got \(1, 1, 8, 8\)"):
        make()(torch.zeros(1, 1, 8, 8))
