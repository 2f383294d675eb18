"""One table of chips: topologies, lane folding and JAX's device names agree on it."""

import logging
from types import SimpleNamespace

import pytest

from jaxsr.interop.aot.chips import CHIPS, chip_of
from jaxsr.interop.folding.policy import choose_folding
from jaxsr.interop.folding.table import FOLDS


def test_every_device_kind_is_one_chip():
    kinds = [kind for chip in CHIPS.values() for kind in chip.kinds]
    assert len(kinds) == len(set(kinds))
    assert all(kind in chip_of(kind).kinds for kind in kinds)  # type: ignore[union-attr]
    assert chip_of("TPU v99") is None


def test_every_table_of_folds_is_of_a_chip_that_is_known():
    assert set(FOLDS) <= set(CHIPS)
    for name in FOLDS:
        for kind in CHIPS[name].kinds:
            device = SimpleNamespace(platform="tpu", device_kind=kind)
            folding = choose_folding("auto", device)
            assert folding is not None and folding.folds == FOLDS[name]


@pytest.mark.parametrize("kind", ["TPU v4", "TPU v99"])
def test_a_chip_without_folds_is_named_in_a_warning(kind, caplog):
    device = SimpleNamespace(platform="tpu", device_kind=kind)
    with caplog.at_level(logging.WARNING):
        folding = choose_folding("auto", device)
    assert folding is not None and folding.folds == FOLDS["v5e"]
    assert f"no table for {kind} and uses that of v5e" in caplog.text
