"""Libraries that examples need beside torch."""

import importlib
from typing import Any

import pytest
import torch


@pytest.fixture(scope="session")
def torchvision_operators() -> Any:
    """Operators that a torchvision built for another torch asks for when it is imported."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        importlib.import_module("torchvision")
    except Exception:
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


@pytest.fixture
def needs(torchvision_operators):
    """Skips where a library is not installed."""

    def library(name: str) -> Any:
        try:
            return importlib.import_module(name)
        except Exception as error:
            pytest.skip(f"{name} cannot be imported: {error}")

    return library
