"""An adapter that is merged into its weight in evaluation."""

from typing import Any

import torch
from torch import nn


class Merging(nn.Linear):
    """Adds its adapter to the weight in evaluation, as loralib does."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(4, 4)
        self.weight.requires_grad_(False)
        self.adapter, self.merged = nn.Parameter(torch.randn(4, 4)), False

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        if mode is self.merged:
            self.weight.data += -self.adapter if mode else self.adapter
            self.merged = not mode
        return self

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y = super().forward(input)
        return y if self.merged else y + input @ self.adapter.T
