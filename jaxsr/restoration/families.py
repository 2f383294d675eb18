"""The networks of jaxsr's own families, built from what their weights are called and shaped like.

A file that says its configuration is believed; published ones say nothing, and need not.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.models.weight_files import load_weights

Weights = Mapping[str, Tensor]

PREFIX = "generator."
"""What an objective's export puts before each name."""


def build_known(weights: Weights, said: Mapping[str, Any], *, source: str) -> nn.Module | None:
    """The network that the weights are of, loaded; None where no family is recognised.

    Args:
      weights: tensors by name.
      said: `family` and `config`, where the file says them.
      source: where the weights are from, for errors.

    Raises:
      ValueError: of a family that does not restore, or not fitting its own configuration.
    """
    if weights and all(name.startswith(PREFIX) for name in weights):
        weights = {name.removeprefix(PREFIX): value for name, value in weights.items()}
    family = said.get("family")
    if "conv_cat.weight" in weights and "upsampler.0.weight" in weights:
        return _span(weights, said.get("config"), source)
    if {"neck.0.weight", "stem.0.conv1.weight", "head.0.weight"} <= set(weights):
        return _fast_srgan(weights, said.get("config"), source)
    if family is not None:
        raise InputError(
            f"{source} is a network of family {family!r}, which does not restore pictures; "
            "give the weights of one that does"
        )
    return None


def _fast_srgan(weights: Weights, config: Mapping[str, Any] | None, source: str) -> nn.Module:
    from jaxsr.models.fast_srgan.config import FastSRGANConfig
    from jaxsr.models.fast_srgan.generator import Generator

    chosen = _fast_srgan_shapes(weights) if config is None else _said(config, FastSRGANConfig)
    network = Generator(FastSRGANConfig(**chosen))
    load_weights(network, weights, source=source)
    return network


def _said(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a stored configuration that `kind` has, as it has them."""
    known = {field.name for field in fields(kind)}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k in known}


def _fast_srgan_shapes(weights: Weights) -> dict[str, Any]:
    neck = weights["neck.0.weight"]
    blocks = {name.split(".")[1] for name in weights if name.startswith("stem.")}
    doublings = {name.split(".")[1] for name in weights if name.startswith("upsampling.")}
    # InstanceNorm leaves no trace in a state dict, but no bias either.
    norm = "batch" if "stem.0.bn1.weight" in weights else "instance"
    if "stem.0.conv1.bias" in weights:
        norm = "none"
    return {
        "scale": 2 ** len(doublings),
        "channels": neck.shape[1],
        "width": neck.shape[0],
        "depth": len(blocks),
        "block": "mobile" if weights["stem.0.conv1.weight"].shape[1] == 1 else "residual",
        "norm": norm,
    }


def _span(weights: Weights, config: Mapping[str, Any] | None, source: str) -> nn.Module:
    from jaxsr.models.span.config import SpanConfig
    from jaxsr.models.span.generator import Span, merge

    chosen = _span_shapes(weights) if config is None else _said(config, SpanConfig)
    network = Span(SpanConfig(**chosen))
    load_weights(network, weights, source=source)
    return merge(network) if network.config.expansion is not None else network


def _span_shapes(weights: Weights) -> dict[str, Any]:
    factored = "conv_1.sk.weight" in weights
    channels = weights["conv_1.sk.weight" if factored else "conv_1.weight"].shape[1]
    return {
        "scale": math.isqrt(weights["upsampler.0.weight"].shape[0] // channels),
        "channels": channels,
        "width": weights["conv_cat.weight"].shape[0],
        "depth": len({name.split(".")[1] for name in weights if name.startswith("blocks.")}),
        "block": "attention" if any(".c3_r." in name for name in weights) else "residual",
        "expansion": weights["conv_1.conv.0.weight"].shape[0] // channels if factored else None,
    }
