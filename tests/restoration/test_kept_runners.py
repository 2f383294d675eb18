"""`jaxsr.restore` compiles once for a network, and never computes with what the network was."""

import gc
import weakref

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import jaxsr
from jaxsr.errors import DeviceError
from jaxsr.restoration import kept_runners
from jaxsr.restoration.receptive_field import measure_reach
from tests.restoration import networks

PICTURE = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
GAIN = [1.0]


class Scaled(networks.Small):
    """Keeps Python values that its result depends on."""

    gain: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.settings = {"strength": 1.0}
        self.table = torch.ones(3, 1, 1)
        self.register_buffer("gain", torch.ones(3, 1, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.settings["strength"] * self.table * self.gain * GAIN[0]


@pytest.fixture(autouse=True)
def _empty():
    kept_runners._open_runners.clear()


@pytest.fixture
def compiled(monkeypatch):
    events: list[str] = []

    def count(event: str, duration_secs: float, **_: object) -> None:
        events.extend([event] * event.endswith("backend_compile_duration"))

    jax.monitoring.register_event_duration_secs_listener(count)
    yield events
    jax.monitoring.unregister_event_duration_listener(count)


def test_further_calls_compile_nothing(compiled, tmp_path):
    torch.manual_seed(0)
    network = networks.Small()
    path = tmp_path / "small.pt"
    torch.save(network.state_dict(), path)
    given = {"model": "tests.restoration.networks:Small", "weights": path}
    want = jaxsr.restore(PICTURE, network)
    np.testing.assert_array_equal(jaxsr.restore(PICTURE, **given), want)
    before = len(compiled)
    assert before >= 2
    for _ in range(2):
        np.testing.assert_array_equal(jaxsr.restore(PICTURE, network), want)
        np.testing.assert_array_equal(jaxsr.restore(PICTURE, **given), want)
    assert len(compiled) == before


def darker(scaled: Scaled, x: torch.Tensor) -> torch.Tensor:
    return networks.Small.forward(scaled, x) * 0.5


CHANGES = (
    "weights", "data", "attribute", "tensor", "global", "parameter", "buffer", "assigned state",
    "method of the class", "hook of all modules", "method of torch's class", "function of torch",
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_network_is_not_taken_for_the_earlier_one(change, monkeypatch):
    torch.manual_seed(0)
    network = Scaled()
    first = jaxsr.restore(PICTURE, network)
    with torch.no_grad():
        if change == "weights":
            network.last.weight.mul_(0.5)
        elif change == "data":
            network.last.weight.data.numpy()[:] *= 0.5
        elif change == "attribute":
            network.settings["strength"] = 0.5
        elif change == "tensor":
            network.table.mul_(0.5)
        elif change == "parameter":
            network.last.weight = torch.nn.Parameter(0.5 * network.last.weight.detach())
        elif change == "buffer":
            network.gain = network.gain * 0.5
        elif change == "assigned state":
            state = {name: value * 0.5 for name, value in network.state_dict().items()}
            network.load_state_dict(state, assign=True)
        elif change == "method of the class":
            monkeypatch.setattr(Scaled, "forward", darker)
        elif change == "hook of all modules":
            hooks = torch.nn.modules.module._global_forward_hooks
            monkeypatch.setitem(hooks, -1, lambda module, args, output: output * 0.9)
        elif change == "method of torch's class":
            convolve = torch.nn.Conv2d.forward
            monkeypatch.setattr(torch.nn.Conv2d, "forward", lambda self, x: convolve(self, x) * 0.9)
        elif change == "function of torch":
            conv2d = F.conv2d
            monkeypatch.setattr(F, "conv2d", lambda *args: conv2d(*args) * 0.9)
        else:
            monkeypatch.setattr("tests.restoration.test_kept_runners.GAIN", [0.5])
    second = np.asarray(jaxsr.restore(PICTURE, network))
    want = np.asarray(jaxsr.restore(PICTURE, network, engine="torch"))
    assert np.abs(second.astype(int) - want).max() <= 1  # sums in another order
    assert np.abs(second.astype(int) - np.asarray(first)).max() > 1


def test_tiles_are_exact_after_a_table_of_positions_was_trained():
    torch.manual_seed(0)
    network = networks.Placed()
    picture = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    jaxsr.restore(picture, network, tile=24)
    torch.nn.init.normal_(network.table, std=0.3)
    tiled = np.asarray(jaxsr.restore(picture, network, tile=24))
    whole = np.asarray(jaxsr.restore(picture, network, tiling="off", engine="torch"))
    assert np.abs(tiled.astype(int) - whole).max() <= 1


def test_a_reach_is_measured_once_while_a_network_stays_as_it_is(monkeypatch):
    measured = []

    def counted(network, **options):
        measured.append(network)
        return measure_reach(network, **options)

    monkeypatch.setattr("jaxsr.restoration.models.measure_reach", counted)
    network = networks.Small()
    for count, padding in [(1, 2), (1, 2), (2, 4)]:
        network.first.padding = (padding, padding)
        network.first.dilation = (padding // 2, padding // 2)
        jaxsr.restore(PICTURE, network)
        assert len(measured) == count


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_tiles_beyond_the_memory_are_refused_before_they_are_made(monkeypatch, engine):
    monkeypatch.setattr("jaxsr.interop.out_of_memory.free_memory_bytes", lambda: 2**20)
    with pytest.raises(DeviceError, match=r"4096 tiles of .* lower --batch or --tile"):
        jaxsr.restore(PICTURE, networks.Small(), batch=4096, tile=16, engine=engine)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(kept_runners, "_RUNNERS", 2)
    monkeypatch.setattr(kept_runners, "_PROGRAMS", 3)
    first = networks.Small()
    gone = weakref.ref(first)
    jaxsr.restore(PICTURE, first)
    del first
    network = networks.Small()
    for size in range(12, 20):
        jaxsr.restore(PICTURE[:size], network, tiling="off")
        assert all(len(kept.runner.programs) <= 3 for kept in kept_runners._open_runners.values())
    jaxsr.restore(PICTURE, networks.Small())
    assert len(kept_runners._open_runners) == 2
    gc.collect()
    assert gone() is None
