"""Ranges read from operations, against the pixels that a NaN reaches in torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.restoration.coverage import cover
from jaxsr.restoration.covered_tensor import NotAnalysedError
from jaxsr.restoration.receptive_field import measure_reach


class Function(nn.Module):
    """A function of a picture as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def windows(x: Tensor, side: int = 4) -> Tensor:
    """Attention within windows of `side` by `side` pixels."""
    n, c, h, w = x.shape
    parts = x.view(n, c, h // side, side, w // side, side).permute(0, 2, 4, 3, 5, 1)
    tokens = parts.reshape(-1, side * side, c)
    mixed = torch.softmax(tokens @ tokens.transpose(-2, -1), -1) @ tokens
    parts = mixed.view(n, h // side, w // side, side, side, c).permute(0, 5, 1, 3, 2, 4)
    return parts.reshape(n, c, h, w)


def filtered_windows(x: Tensor) -> Tensor:
    """A filter in the frequencies of windows of 8 by 8 pixels, as FFTformer has."""
    n, c, h, w = x.shape
    parts = x.view(n, c, h // 8, 8, w // 8, 8).transpose(3, 4)
    frequencies = torch.fft.rfft2(parts) * torch.linspace(1, 2, 5)
    return torch.fft.irfft2(frequencies, s=(8, 8)).transpose(3, 4).reshape(x.shape)


def channel_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), (3,)).permute(0, 3, 1, 2)


def fused_attention(x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(tokens, tokens, tokens)
    return mixed.transpose(1, 2).reshape(x.shape)


def written(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(-1).add_(F.avg_pool2d(x, 3, 1, 1).flatten())
    return y


def written_channels(x: Tensor) -> Tensor:
    """As PLKSR does: some channels are replaced; views made before see it."""
    y = x.clone()
    first, rows = y[:, :2], y.permute(0, 2, 3, 1)
    first[:, 1] = F.avg_pool2d(first[:, 1], 3, 1, 1)
    y[:, 2:].mul_(2)
    return rows.permute(0, 3, 1, 2) + F.max_pool2d(first, 5, 1, 2).sum(1, keepdim=True)


def stitched(x: Tensor) -> Tensor:
    """Halves that are computed apart and written into zeros."""
    result, half = torch.zeros(x.shape), x.shape[2] // 2
    for part in (slice(0, half), slice(half, None)):
        result[:, :, part] = F.avg_pool2d(x[:, :, part], 3, 1, 1)
    return result.flip(2)


def returned(x: Tensor) -> Tensor:
    """A constant that was written into, as it is."""
    result = torch.zeros(x.shape)
    result[:, :, 1:] = x[:, :, :-1]
    return result


def rewritten(x: Tensor) -> Tensor:
    """Scores that a mask hid, then written over through a view."""
    scores = x + torch.where(torch.arange(x.shape[2]) < 8, 0.0, -100.0)[:, None]
    scores.view(-1).copy_(F.avg_pool2d(x, 3, 1, 1).flatten())
    return torch.softmax(scores, 2)


def replaced(x: Tensor) -> Tensor:
    """The same, by values that depend on the same rows, through a view from before the mask."""
    scores = x * 1
    view = scores.view(-1)
    scores += torch.where(torch.arange(x.shape[2]) < 8, 0.0, -100.0)[:, None]
    view.copy_(x.flatten())
    return torch.softmax(scores, 2)


torch.manual_seed(0)
CASES = {
    "convolution": nn.Conv2d(3, 3, 5, padding=2),
    "uneven convolution": nn.Conv2d(3, 3, (3, 7), padding=(1, 3)),
    "dilated, grouped": nn.Conv2d(3, 3, 3, padding=4, dilation=4, groups=3),
    "strided and transposed": nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1)
    ),
    "pixel shuffle": nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2)),
    "pixel unshuffle": nn.Sequential(
        nn.PixelUnshuffle(2), nn.Conv2d(12, 12, 3, padding=1), nn.PixelShuffle(2)
    ),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "bicubic": nn.Upsample(scale_factor=2, mode="bicubic"),
    "nearest": nn.Upsample(scale_factor=3, mode="nearest"),
    "pools": nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(3, 1, 1), nn.Upsample(scale_factor=2)),
    "reflection": nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(3, 3, 5)),
    "repetition": nn.Sequential(nn.ReplicationPad2d((1, 2, 3, 0)), nn.Conv2d(3, 3, 4)),
    "cut": Function(lambda x: torch.cat([x[:, :, 1:], x[:, :, :1]], 2)),
    "roll": Function(lambda x: torch.roll(x, (3, -2), (2, 3))),
    "flip": Function(lambda x: x + x.flip(2)),
    "windows": Function(windows),
    "filtered windows": Function(filtered_windows),
    "channel norm": Function(channel_norm),
    "in place": Function(lambda x: F.avg_pool2d(x, 3, 1, 1).add_(x).relu_() + 1),
    "where": Function(lambda x: torch.where(F.avg_pool2d(x, 5, 1, 2) > 0, x, x * 0.5)),
    "attention": Function(fused_attention),
    "a write through a view": Function(written),
    "written channels": Function(written_channels),
    "stitched": Function(stitched),
    "returned": Function(returned),
    "rewritten": Function(rewritten),
    "replaced": Function(replaced),
    "mean": Function(lambda x: x * x.mean((2, 3), keepdim=True)),
    "instance norm": nn.InstanceNorm2d(3),
    "unfold": Function(lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 1)),
}  # fmt: skip


@pytest.mark.sample(20)
@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_ranges_hold_what_a_change_reaches(name, axis):
    network = CASES[name].eval()
    rows = 24
    output, _ = cover(network, channels=3, rows=rows, columns=16, axis=axis)
    results = output.shape[axis]
    others = [a for a in range(4) if a != axis]
    first, last = (r.amin(others).expand(results).int() for r in output.range)
    size = (1, 3, rows, 16) if axis == 2 else (1, 3, 16, rows)
    picture = torch.rand(size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        reference = network(picture)
        for row in range(rows):
            changed = picture.clone()
            changed.select(axis, row).mul_(-3).add_(1)
            touched = (network(changed) != reference).any(5 - axis).any(1)[0]
            inside = (first <= row) & (row <= -last)
            assert not bool((touched & ~inside).any()), row


def _nan(picture, axis, row):
    picture = picture.clone()
    picture.select(axis, row).fill_(torch.nan)
    return picture


@pytest.mark.parametrize("name", ["convolution", "dilated, grouped", "pixel shuffle", "bilinear",
                                  "pools", "reflection", "windows", "filtered windows",
                                  "a write through a view", "written channels",
                                  "stitched"])  # fmt: skip
def test_ranges_are_no_wider_than_a_nan_reaches(name):
    network, rows = CASES[name].eval(), 24
    output, _ = cover(network, channels=3, rows=rows, columns=16, axis=2)
    first, last = (r.amin((0, 1, 3)).expand(output.shape[2]).int() for r in output.range)
    picture = torch.rand(1, 3, rows, 16)
    with torch.no_grad():
        for row in range(rows):
            touched = network(_nan(picture, 2, row)).isnan().any(3).any(1)[0]
            at_ends = (first == row) | (-last == row)
            assert bool(touched[at_ends].all())


class Shifted(nn.Module):
    """Attention in shifted windows; a mask keeps out what the roll brings from the other end."""

    def forward(self, x):
        x = torch.roll(x, (-2, -2), (2, 3))
        n, c, h, w = x.shape
        rows = (torch.arange(h) >= h - 2).float()
        area = (rows[:, None] * 2 + (torch.arange(w) >= w - 2).float())[None, None]
        parts = area.view(1, 1, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16)
        mask = (parts[:, None] - parts[:, :, None] != 0) * -100.0
        tokens = x.view(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
        mixed = torch.softmax(tokens @ tokens.transpose(-2, -1) + mask, -1) @ tokens
        x = mixed.view(n, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)
        return torch.roll(x, (2, 2), (2, 3))


def test_taps_beyond_the_longest_image_of_the_analysis_leave_no_margin():
    network = nn.Conv2d(3, 3, 3, padding=2100, dilation=2100)
    assert measure_reach(network, channels=3).margin is None


def test_masked_scores_are_no_influence():
    reach = measure_reach(nn.Sequential(Shifted(), Function(windows)), channels=3)
    assert (reach.period, reach.margin) == (4, 4)


def test_a_score_that_is_scaled_after_its_mask_counts():
    network = Function(lambda x: torch.softmax((x.flatten(2) - 100) * 0, -1).view(x.shape))
    assert measure_reach(network, channels=3).margin is None


def test_what_cannot_be_followed_is_probed():
    network = Branching(lambda x: F.avg_pool2d(x, 3, 1, 1))
    with pytest.raises(NotAnalysedError):
        cover(network, channels=3, rows=32, columns=32, axis=2)
    reach = measure_reach(network, channels=3)
    assert (reach.margin, reach.period) == (1, 1)


class Branching(Function):
    """Reads a value, so that it must be probed."""

    def forward(self, x):
        return self.function(x) if float(x.mean()) < 9 else x


def test_probing_that_would_take_long_ends(monkeypatch):
    monkeypatch.setattr("jaxsr.restoration.receptive_field._LIMIT_S", 0)
    reach = measure_reach(Branching(lambda x: F.avg_pool2d(x, 3, 1, 1)), channels=3)
    assert (
        reach.margin is None
        and reach.cause == "how far it sees is not found in 0 s of processor time"
    )


def test_random_networks_have_no_tiles():
    reach = measure_reach(Branching(lambda x: x + torch.rand_like(x)), channels=3)
    assert reach.margin is None and reach.cause == "it draws random numbers"


def test_a_network_that_takes_no_picture_is_named():
    with pytest.raises(InputError, match=r"Branching fails on images \(1, 3, 64, 64\): Runt.*40"):
        measure_reach(Branching(lambda x: x.reshape(40)), channels=3)


def test_unknown_operators_are_probed():
    network = Function(lambda x: torch.cummax(x.flatten(2), 2).values.view(x.shape) * 0 + x)
    assert measure_reach(network, channels=3).margin is None


def test_unknown_operators_that_see_little_have_a_margin():
    """Without a rule they depend on all rows, which is not certain."""
    network = Function(lambda x: F.avg_pool2d(torch.cummax(x, 1).values, 3, 1, 1))
    reach = measure_reach(network, channels=3)
    assert (reach.margin, reach.period) == (1, 1)


def test_an_unknown_operator_after_a_mean_is_not_probed(monkeypatch):
    def codes(x):
        y = F.instance_norm(x)
        return y + torch.zeros(x.shape).scatter_(1, y.argmin(1, keepdim=True), 1)

    def probed(_measurement):
        raise AssertionError("probed")

    monkeypatch.setattr("jaxsr.restoration.receptive_field._Measurement._probed", probed)
    reach = measure_reach(Function(codes), channels=3)
    assert reach.margin is None and "batch_norm" in reach.cause
