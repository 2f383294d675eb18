"""Memory that a network needs at once, against torch's own memory tracker."""

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from jaxsr.restoration.coverage import cover
from jaxsr.restoration.live_values import most_live_values
from jaxsr.restoration.receptive_field import measure_reach

SIDE = 64  # torch's tracker rounds up to 512 bytes; these tensors are multiples of that


class Dense(nn.Module):
    """Keeps what it has computed, and looks at it through views."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(4 * k, 4, 3, padding=1) for k in (1, 2, 3))
        self.head, self.tail = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 12, 3, padding=1)

    def forward(self, x):
        seen = [self.head(x)]
        for convolution in self.convolutions:
            seen.append(torch.relu(convolution(torch.cat(seen, 1))))
        tokens = seen[-1].flatten(2).transpose(1, 2) * 2
        y = tokens.transpose(1, 2).reshape(seen[0].shape)
        y += seen[0]
        return nn.functional.pixel_shuffle(self.tail(y), 2)


NETWORKS = {
    "chain": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2)
    ),
    "dense": Dense,
}


def by_torch(network, picture):
    tracker = MemTracker()
    with torch.no_grad(), tracker:
        network(picture)
    (device,) = tracker.get_tracker_snapshot("peak").values()
    return device["Total"] // 4 - sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_as_many_values_as_torch_counts(name):
    network, picture = NETWORKS[name]().eval(), torch.rand(1, 3, SIDE, SIDE)
    expected = by_torch(network, picture)
    assert most_live_values(network, picture) == expected
    _, coverage = cover(network, channels=3, rows=SIDE, columns=SIDE, axis=2)
    assert coverage.live.most == expected + picture.numel()  # which its caller holds
    assert measure_reach(network, channels=3).live == coverage.live.most // SIDE**2
