"""A forward that drops any error; importing it warns from Python 3.14 on."""

from typing import Any

import torch


def forward(x: torch.Tensor) -> Any:
    """Returns None, whatever the reading of a value raises."""
    try:
        return x.sum().item()
    finally:
        return None  # noqa: B012, SIM107
