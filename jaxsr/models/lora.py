"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) for linear layers, chosen by name.

A layer computes `W x + alpha / rank · B A x`; only A and B learn. B starts at 0.
"""

import math
from fnmatch import fnmatchcase
from numbers import Integral

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError


class LoraLinear(nn.Module):
    """A linear layer that is frozen, and its adapter."""

    def __init__(self, base: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        like = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.a = nn.Parameter(torch.empty(rank, base.in_features, **like))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:
        """The weight with its adapter, which torch's own attention reads instead of calling it."""
        return self.base.weight + self._update()

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    @property
    def in_features(self) -> int:
        return self.base.in_features

    @property
    def out_features(self) -> int:
        return self.base.out_features

    def _update(self) -> Tensor:
        return self.scale * self.b @ self.a

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output and the adapter's."""
        update = nn.functional.linear(nn.functional.linear(x, self.a), self.b)
        return self.base(x) + self.scale * update

    def merged(self) -> nn.Linear:
        """The layer with the adapter added to its weight."""
        with torch.no_grad():
            self.base.weight += self._update()
        return self.base


def add_lora(
    network: nn.Module, *patterns: str, rank: int = 8, alpha: float | None = None
) -> list[str]:
    """Freezes a network and gives the linear layers that match a pattern an adapter, in place.

    Args:
      network: any module.
      *patterns: of the layers' names, as `fnmatch` has them: "*.q_proj".
      rank: rows of A, at least 1.
      alpha: see the module's docstring. Default: the rank.

    Returns:
      Names of the layers.

    Raises:
      InputError: a pattern matches no linear layer, the rank is not a whole number above 0, the
        network has adapters, or a layer could not be merged: its weight is used in two places or
        computed, or its output is not `W x + b` alone.
    """
    if not isinstance(rank, Integral) or rank < 1:
        raise InputError(f"rank must be a whole number of at least 1, got {rank!r}")
    for name, module in network.named_modules():
        if isinstance(module, LoraLinear):
            raise InputError(
                f"the network has adapters already, the first at {name}; give all patterns to one "
                "call, or merge_lora(network) before the next one"
            )
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in linear):
            raise InputError(
                f"the LoRA pattern {pattern!r} matches no linear layer; there are "
                f"{', '.join(linear[:4])}, …"
            )
    chosen = [name for name in linear if any(fnmatchcase(name, p) for p in patterns)]
    _check_merging(network, chosen)
    network.requires_grad_(False)
    for name in chosen:
        base = network.get_submodule(name)
        assert isinstance(base, nn.Linear)
        adapted = LoraLinear(base, rank=rank, alpha=rank if alpha is None else alpha)
        network.set_submodule(name, adapted)
    return chosen


def _check_merging(network: nn.Module, chosen: list[str]) -> None:
    """Refuses layers whose output with a merged adapter differs from the one that was trained.

    Their weight is another layer's too, or the next call computes it anew, or the class or a hook
    changes what they compute.
    """
    places: dict[int, list[str]] = {}
    for path, module in network.named_modules():
        for name, part in (*module._modules.items(), *module._parameters.items()):
            places.setdefault(id(part), []).append(f"{path}.{name}".removeprefix("."))
    if "" in chosen:
        raise InputError(
            "the model itself is an nn.Linear, in which no layer can be replaced; put it into an "
            "nn.Sequential"
        )
    for name in chosen:
        layer = network.get_submodule(name)
        places_of_both = [*places.get(id(layer), []), *places.get(id(layer.weight), [])]
        others = [place for place in places_of_both if place not in (name, f"{name}.weight")]
        rule = ""
        if others:
            rule = f"it is also {others[0]}"
        elif not isinstance(layer.weight, nn.Parameter):
            rule = "it is computed from other tensors"
        elif getattr(layer.forward, "__func__", None) is not nn.Linear.forward:
            rule = f"{type(layer).__name__} has a forward other than nn.Linear's"
        elif layer._forward_hooks or layer._forward_pre_hooks:
            rule = "hooks may change the layer's input or output"
        if rule:
            raise InputError(
                f"an adapter cannot be merged into {name}.weight: {rule}; leave {name} out of the "
                "LoRA patterns"
            )


def merge_lora(network: nn.Module) -> nn.Module:
    """Adds all adapters to their weights, in place; layers have their first names again."""
    for name, module in list(network.named_modules()):
        if isinstance(module, LoraLinear):
            network.set_submodule(name, module.merged())
    return network
