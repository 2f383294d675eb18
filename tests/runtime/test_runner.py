"""A network on JAX and on torch through one interface, against plain torch."""

import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.errors import DeviceError, UnsupportedTorchError
from jaxsr.interop import out_of_memory
from jaxsr.restoration.around_tiles import around_tiles
from jaxsr.runtime.open_runner import open_runner
from jaxsr.runtime.options import ComputeOptions
from jaxsr.runtime.runner import Runner


class Small(nn.Module):
    """Asymmetric, with a keyword argument."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x, scale=None):
        y = self.conv(x)
        return y if scale is None else y * scale[:, :, None, None]


class Several(Small):
    """Also gives a smaller picture, first."""

    def forward(self, x, scale=None):
        y = super().forward(x, scale)
        return [y[..., ::2, ::2], y]


class Branching(Small):
    """JAX refuses it when it is traced."""

    def forward(self, x, scale=None):
        y = super().forward(x, scale)
        return 2 * y if float(x.mean()) > 0 else y


class Hooked(Small):
    """JAX refuses it when it is converted."""

    def __init__(self) -> None:
        super().__init__()
        self.conv.register_full_backward_hook(lambda *_: None)


class Wrong(Small):
    """A mistake, in either engine."""

    def forward(self, x, scale=None):
        return super().forward(x[:, :2], scale)


class Words(Small):
    def forward(self, x, scale=None):
        return "words"


@pytest.fixture(scope="module")
def network() -> Small:
    torch.manual_seed(0)
    return Small()


@pytest.fixture(scope="module")
def batch() -> np.ndarray:
    return np.random.default_rng(0).random((4, 3, 9, 12), np.float32)


def plain(network: nn.Module, batch: np.ndarray, **named: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return network(
            torch.from_numpy(batch), **{n: torch.from_numpy(a) for n, a in named.items()}
        ).numpy()


ENGINES = {
    "jax": ComputeOptions(),
    "jax on a mesh": ComputeOptions(mesh="data=2,fsdp=2"),
    "torch": ComputeOptions(engine="torch", platform="cpu"),
}


@pytest.fixture(params=ENGINES)
def options(request) -> ComputeOptions:
    return ENGINES[request.param]


def test_results_are_those_of_torch(network, batch, options):
    runner: Runner = open_runner(network, options)
    np.testing.assert_allclose(runner.submit(batch)(), plain(network, batch), atol=1e-5)


def test_of_several_outputs_the_largest_is_the_result(network, batch, options):
    several = Several()
    several.load_state_dict(network.state_dict())
    runner: Runner = open_runner(several, options)
    np.testing.assert_allclose(runner.submit(batch)(), plain(network, batch), atol=1e-5)
    scale = np.arange(4, dtype=np.float32).reshape(4, 1)
    result = runner.submit(batch, scale=scale)()
    np.testing.assert_allclose(result, plain(network, batch, scale=scale), atol=1e-5)
    assert runner.programs == {batch.shape} and runner.platform == "cpu"


def test_batches_are_collected_in_any_order(network, batch, options):
    runner = open_runner(network, options)
    first, second = runner.submit(batch), runner.submit(2 * batch)
    np.testing.assert_allclose(second(), plain(network, 2 * batch), atol=1e-5)
    np.testing.assert_allclose(first(), plain(network, batch), atol=1e-5)


def test_bfloat16_is_computed_and_float32_returned(network, batch, options):
    import dataclasses

    runner = open_runner(network, dataclasses.replace(options, dtype="bfloat16"))
    result = runner.submit(batch)()
    want = plain(network, batch)
    assert result.dtype == np.float32
    error = np.abs(result - want).max()
    assert 0 < error < 3e-2  # 8 bits of mantissa, values about 1
    assert next(network.parameters()).dtype == torch.float32


@pytest.mark.sample(4)
@pytest.mark.parametrize("value_range", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_what_is_around_the_network_is_part_of_the_program(network, batch, options, value_range):
    low, high = value_range
    runner = open_runner(network, options, around=around_tiles(value_range, ensemble=False))
    want = (plain(network, batch * (high - low) + low) - low) / (high - low)
    np.testing.assert_allclose(runner.submit(batch)(), want, atol=1e-5)


@pytest.mark.sample(2)
def test_the_ensemble_averages_the_eight_symmetries(network, batch, options):
    square = batch[..., :9]
    runner = open_runner(network, options, around=around_tiles((0.0, 1.0), ensemble=True))
    results = []
    for flipped in (False, True):
        for turns in range(4):
            x = np.rot90(square[..., ::-1] if flipped else square, turns, (-2, -1))
            y = np.rot90(plain(network, np.ascontiguousarray(x)), -turns, (-2, -1))
            results.append(y[..., ::-1] if flipped else y)
    np.testing.assert_allclose(runner.submit(square)(), np.mean(results, 0), atol=1e-5)


@pytest.mark.parametrize("kind", [Branching, Hooked])
def test_of_what_jax_refuses_the_other_engine_is_named_and_runs_it(kind, batch):
    torch.manual_seed(0)
    network = kind()
    with pytest.raises(UnsupportedTorchError, match=r"; --engine torch runs the network as it is$"):
        open_runner(network, ENGINES["jax"]).submit(batch)()
    result = open_runner(network, ENGINES["torch"]).submit(batch)()
    np.testing.assert_allclose(result, plain(network, batch), atol=1e-5)


@pytest.mark.parametrize("kind", [Wrong, Words])
def test_of_a_mistake_the_other_engine_is_not_named(kind, batch):
    for options in (ENGINES["jax"], ENGINES["torch"]):
        with pytest.raises((RuntimeError, ValueError)) as refused:
            open_runner(kind(), options).submit(batch)()
        assert "--engine" not in str(refused.value)


def test_devices_that_are_not_there(network, monkeypatch):
    with pytest.raises(DeviceError, match="mesh of 99 devices"):
        open_runner(network, ComputeOptions(mesh="99"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="torch finds no CUDA device"):
        open_runner(network, ComputeOptions(engine="torch", platform="cuda"))


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_batch_is_compiled_ahead_of_time(network):
    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.runtime.jax_runner import open_ahead

    topology = load_topology("v5e:2x2")
    around = around_tiles((-1.0, 1.0), ensemble=False)
    report = open_ahead(network, topology, ComputeOptions(), around=around).lower(
        (8, 3, 16, 16), topology, name="small"
    )
    assert report.compiles and report.devices == 4 and report.name == "small"


def test_a_program_that_memory_cannot_hold_is_refused_before_it_runs(monkeypatch):
    runner = open_runner(Small(), ComputeOptions(platform="cpu"))
    small, large = (np.ones((1, 3, side, side), np.float32) for side in (4, 64))
    runner.submit(small)()
    monkeypatch.setattr(out_of_memory, "free_memory_bytes", lambda: 4096)
    runner.submit(small)()
    with pytest.raises(out_of_memory.OutOfMemoryError, match="on 1 input of shape 3x64x64 need"):
        runner.submit(large)
