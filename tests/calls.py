"""A module that runs a function, for tests of single operations."""

from collections.abc import Callable
from typing import Any

from torch import nn


class Call(nn.Module):
    """Its forward is the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)
