"""Modules that torch runs otherwise below a mode, or that have no modes of their own."""

import pytest
import torch
from torch import nn

import jaxsr


class Inverts(nn.Module):
    def forward(self, x):
        return torch.linalg.pinv(torch.complex(x, x.flip(0)))


def test_a_complex_pseudoinverse_is_compared_with_torchs_own():
    result = jaxsr.check(Inverts(), torch.randn(4, 4), mesh=1, speed_s=0)
    assert {row.name: row.status for row in result.rows}["vmap"] == "ok"
    assert result.ok


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's own copies of graphs
def test_an_exported_program():
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    program = torch.export.export(network, (torch.ones(3, 4),)).module()
    assert jaxsr.check(program, torch.randn(3, 4), mesh=1, speed_s=0, vmap=False).ok
