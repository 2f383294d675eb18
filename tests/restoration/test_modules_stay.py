"""`jaxsr.restore` leaves a module of the caller's as it was."""

import numpy as np
import pytest
import torch
from torch import nn

import jaxsr
from jaxsr.interop.torch_evaluation import evaluating
from tests.restoration import networks

PICTURE = np.random.default_rng(0).integers(0, 256, (12, 14, 3), dtype=np.uint8)


class Normed(networks.Small):
    """Has layers whose mode counts; fails if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm2d(3), nn.Dropout(0.5)
        self.register_buffer("gain", torch.ones(1, dtype=torch.float16))
        self.fails = False

    gain: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("on purpose")
        return super().forward(self.drop(self.norm(x))) * self.gain.float()


def facts(network: nn.Module) -> list[object]:
    modes = [module.training for module in network.modules()]
    return [*modes, *((t.dtype, t.device, t.sum().item()) for t in network.state_dict().values())]


@pytest.fixture
def network():
    torch.manual_seed(0)
    made = Normed().train()
    made.second.eval()  # one that is frozen
    return made


@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("channels", [None, 3])
def test_a_module_keeps_its_modes_and_types(network, engine, channels):
    before = facts(network)
    jaxsr.restore(PICTURE, network, engine=engine, channels=channels)
    assert facts(network) == before
    network.fails = True
    with pytest.raises((RuntimeError, ValueError)):
        jaxsr.restore(PICTURE, network, engine=engine, channels=channels)
    assert facts(network) == before


def test_weights_go_into_a_copy(network, tmp_path):
    torch.manual_seed(1)
    other = Normed()
    torch.save(other.state_dict(), tmp_path / "other.pth")
    before = facts(network)
    got = jaxsr.restore(PICTURE, network, weights=tmp_path / "other.pth")
    assert facts(network) == before
    np.testing.assert_array_equal(got, jaxsr.restore(PICTURE, other))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_module_stays_on_its_device(network, engine):
    want = jaxsr.restore(PICTURE, network, engine=engine)
    network.cuda()
    before = facts(network)
    np.testing.assert_array_equal(jaxsr.restore(PICTURE, network, engine=engine), want)
    assert facts(network) == before


class Merging(nn.Linear):
    """Merges its weights for evaluation, as adapters do."""

    is_merged = False

    def train(self, mode: bool = True) -> "Merging":
        self.is_merged = not mode
        return super().train(mode)


def test_of_blocks_that_overlap_the_last_one_gives_the_modes_back():
    network = nn.Sequential(Merging(2, 2), nn.Dropout(), Merging(2, 2)).train()
    network[1].eval()
    network[2].eval()
    first, second, inner = evaluating(network), evaluating(network), evaluating(network[0])
    for block in (first, inner, second):
        block.__enter__()
        assert not any(module.training for module in network.modules())
    for block in (first, second):
        block.__exit__(None, None, None)
        assert not network[0].training
    inner.__exit__(None, None, None)
    assert [module.training for module in network.modules()] == [True, True, False, False]
    assert [network[0].is_merged, network[2].is_merged] == [False, True]
