"""`benchmarks.forecast`: communication against closed forms, and the committed programs."""

from types import SimpleNamespace

import pytest

from benchmarks.ahead import forecast
from benchmarks.ahead.forecast_programs import Figures, continued

V5E, _, H100 = forecast.SYSTEMS
NOTHING = Figures(flops=0, bytes=0, arguments=0, temporaries=0, gathered=0, reduced=0)
GB = 1e9


def figures(**values):
    return Figures(**{**vars(NOTHING), **values})


def test_rings_in_one_group():
    """An all-reduce sends every byte twice, less what a device has; a gather once."""
    summed, gathered = figures(reduced=8 * GB), figures(gathered=8 * GB)
    assert forecast.links_s(summed, H100, 8, 450e9) == pytest.approx(14 / 450)
    assert forecast.links_s(gathered, V5E, 256, 100e9) == pytest.approx(8 * 255 / 256 / 100)


def test_between_groups_all_adapters_of_a_group_share_the_bytes():
    gathered = figures(gathered=8 * GB)
    # Of 16 GPUs half the bytes come from the other host, an eighth of them over each adapter.
    slow = forecast.System(name="", chip="h100", compiled="", group=8, network_bytes_per_s=1e9)
    assert forecast.links_s(gathered, slow, 16, 450e9) == pytest.approx(8 * 0.5 / 8 / 1)
    assert forecast.links_s(gathered, H100, 16, 1e9) == pytest.approx(8 * 7 / 8)
    # Between TPU slices only split gradients are summed.
    inside = forecast.links_s(figures(reduced=GB), V5E, 256, 100e9)
    across = forecast.links_s(figures(reduced=GB), V5E, 1024, 100e9)
    assert across - inside == pytest.approx(2 * 0.75 * 1e9 / 256 / V5E.network_bytes_per_s)


def test_layers_are_continued():
    one, two = figures(flops=5.0, gathered=1.0), figures(flops=8.0, gathered=1.5)
    assert continued(one, two, 1) == one
    assert continued(one, two, 2) == two
    assert continued(one, two, 32) == figures(flops=5 + 31 * 3.0, gathered=1 + 31 * 0.5)


def test_efficiency_is_what_communication_leaves():
    device = SimpleNamespace(
        flops_per_s=100.0, memory_bytes_per_s=1e30, link_bytes_per_s=2.0, memory_bytes=10
    )
    work = figures(flops=50.0, gathered=8.0, arguments=6, temporaries=5)
    one = forecast.forecast("m", work, V5E, 8, device)  # 1 s of arithmetic, 7 s of links
    assert (one.step_s, one.least_efficiency, one.best_efficiency) == pytest.approx(
        (7, 1 / 8, 1 / 7)
    )
    assert one.memory_share == pytest.approx(1.1)
    # State that is split over twice the devices takes half of it.
    assert forecast.forecast("m", work, V5E, 16, device).memory_share == pytest.approx(0.8)


def test_committed_programs_give_the_whole_table():
    """The work of a model, counted by hand, against its program of so many layers."""
    by_name = {(m, s.name): f for m, s, f in forecast.models()}
    assert len(by_name) == 9
    parameters = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256
    attention = 32 * 2 * 2 * 4096**2 * 4096
    # Two FLOPs a product, forward, backward twice that, and blocks once more.
    products = 2 * 4096 * (4 * parameters - 4096 * 128256) + 4 * attention
    llama = by_name["Llama-3.1-8B", "H100"]
    assert llama.flops == pytest.approx(products, rel=0.1)
    # Parameters in bfloat16 are gathered forward and backward, their gradients scattered.
    assert llama.gathered == pytest.approx(3 * 2 * parameters, rel=0.25)
    transformer = by_name["SR transformer", "H100"]
    assert transformer.reduced == pytest.approx(4 * 14 * 12 * 768**2, rel=0.01)
    text = "\n".join(forecast.table(forecast.forecasts()))
    assert text.count("\n") == 2 + 9 - 1
    assert text in (forecast.RESULTS.parents[1] / "docs" / "scale.md").read_text()
