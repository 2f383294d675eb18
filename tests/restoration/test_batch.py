"""Ends of a run that is interrupted, by the files that Pillow reads afterwards."""

import dataclasses
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from jaxsr.data.sources import Source
from jaxsr.restoration import batch, pipeline
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.made_by import MadeBy
from jaxsr.restoration.restorer import configured_model, make_restorer
from tests.restoration import networks

FILES = (batch.__file__, pipeline.__file__)
Line = tuple[str, int]


@pytest.fixture
def restore(tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Restores two images, of two tiles each, into a new folder."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(batch, "_RESULT_BYTES", 2**14)  # one at a time, as large ones are
    sources = []
    for name, height in (("a.png", 100), ("b.png", 90)):
        pixels = np.random.default_rng(height).integers(0, 256, (height, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
        sources.append(Source(tmp_path / name, Path(name)))
    torch.save(networks.Small().state_dict(), tmp_path / "small.pth")
    config = RestoreConfig(
        model="tests.restoration.networks:Small",
        weights=tmp_path / "small.pth",
        engine="torch",
        tile=64,
        outscale=1.5,
    )
    model = configured_model(config)

    def run(name: str) -> Path:
        model.reach.tried.clear()  # tiles are tried again
        restorer, _, _ = make_restorer(model, config)
        into = dataclasses.replace(config, out=tmp_path / name)
        batch.BatchRestorer(restorer, into, MadeBy(into, [model])).run(sources)
        return into.out

    return run


def traced(run: Callable[[], object], at_line: Callable[[Line], None]) -> None:
    """Runs, and calls `at_line` before each line of `FILES` that this thread comes to."""

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in FILES:
            return None
        if event in ("call", "line"):
            at_line((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)


def read(folder: Path) -> dict[str, np.ndarray]:
    return {p.name: np.asarray(Image.open(p)) for p in folder.glob("*.*") if p.name[0] != "."}


@pytest.mark.timeout(120)
def test_an_interrupt_before_any_line_ends_the_run(restore, tmp_path):
    lines: list[Line] = []
    traced(lambda: restore("whole"), lines.append)
    whole = read(restore("whole"))
    assert len(whole) == 2 and len({*lines}) > 150
    for number, place in enumerate({*lines}):
        came: list[Line] = []

        def interrupt(line: Line, place: Line = place, came: list[Line] = came) -> None:
            if line == place and not came:
                came.append(line)
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):  # whether a run comes to wait is chance
            traced(lambda number=number: restore(f"{number}"), interrupt)
        for name, pixels in read(tmp_path / f"{number}").items():
            np.testing.assert_array_equal(pixels, whole[name])
        assert not [*tmp_path.glob(f"{number}/.*partial*")], place
