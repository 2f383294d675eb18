"""Inputs of a model: as `--input` states them, or from the model's own description."""

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from jaxsr.errors import InputError, first_of
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.module_copy import copy_module
from jaxsr.models.registry import FAMILIES, LoadedModel, find_family

_SPEC = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?:(?P<dtype>[a-z]+\d*):)?(?P<sizes>\d+(?:,\d+)*)(?::(?P<limit>\d+))?"
)
_DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "bfloat16", "float16", "complex64", "int64", "int32", "int16", "int8",
                 "uint8", "bool")
}  # fmt: skip
_BATCH, _TOKENS, _MOST_VALUES = 2, 16, 2**31
Example = tuple[tuple, dict[str, PyTree]]


def parse_inputs(specs: Sequence[str]) -> Example:
    """Positional and keyword arguments of `[NAME=][DTYPE:]SIZES[:LIMIT]`.

    Args:
      specs: `2,3,32,32` is an image batch of normal numbers, `ids=int64:2,16:1000` two rows of
        tokens below 1000.

    Raises:
      InputError: one cannot be read.
    """
    generator = torch.Generator().manual_seed(0)
    args: list[Any] = []
    kwargs: dict[str, PyTree] = {}
    for spec in specs:
        match = _SPEC.fullmatch(spec)
        dtype = _DTYPES.get(match["dtype"] or "float32") if match else None
        if match is None or dtype is None:
            raise InputError(
                f"input must be [NAME=][DTYPE:]SIZES[:LIMIT] such as 2,3,32,32 or "
                f"ids=int64:2,16:1000, with a DTYPE of {', '.join(_DTYPES)}; got {spec[:80]!r}"
            )
        digits = match["sizes"].split(",")
        sizes = tuple(int(size) for size in digits) if max(map(len, digits)) < 10 else (0,)
        values = torch.Size(sizes).numel()
        if not 0 < values < _MOST_VALUES:
            raise InputError(f"input {spec[:80]!r} must have from 1 to {_MOST_VALUES - 1} values")
        limit = int((match["limit"] or "2")[:18])
        if dtype.is_floating_point or dtype.is_complex:
            tensor = torch.randn(sizes, generator=generator).to(dtype)
        else:
            tensor = torch.randint(0, max(limit, 1), sizes, generator=generator).to(dtype)
        if match["name"]:
            kwargs[match["name"]] = tensor
        else:
            args.append(tensor)
    return tuple(args), kwargs


def example_inputs(loaded: LoadedModel) -> Example:
    """Inputs that the model runs on in torch, from its family or its library's description.

    Raises:
      InputError: the inputs are not described, or torch fails on all described ones.
    """
    failures: list[str] = []
    for args, kwargs in _candidates(loaded):
        try:
            with torch.no_grad():  # in a copy: some modules fill caches
                copy_module(loaded.network)(*args, **kwargs)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}"[:160])
            continue
        return args, kwargs
    if failures:
        why = f"torch fails on those tried for {loaded.name} ({first_of(failures, 1)})"
    else:
        why = f"nothing describes the inputs of {loaded.name}"
    raise InputError(f"{why}; give them as --input 1,3,224,224")


def _candidates(loaded: LoadedModel) -> Iterator[Example]:
    network = loaded.network
    if loaded.family in FAMILIES:
        family = find_family(loaded.family)
        for side in (32, 64):
            example = family.example(side_px=side)
            yield (example,), {}
            if example.ndim == 4:
                yield (example[:, :1].contiguous(),), {}
    timm = getattr(network, "pretrained_cfg", None)
    if isinstance(timm, dict) and timm.get("input_size"):
        least = timm.get("min_input_size") or timm["input_size"]
        for size in dict.fromkeys((tuple(least), tuple(timm["input_size"]))):
            yield (_normal(_BATCH, *size),), {}
    if hasattr(network, "config") and hasattr(network, "main_input_name"):
        yield from _of_transformers(network)
    if type(network).__module__.startswith("torchvision.models.detection"):
        yield ([_normal(3, 128, 128).sigmoid(), _normal(3, 96, 128).sigmoid()],), {}
    elif type(network).__module__.startswith("torchvision."):
        sizes = ((3, 224, 224), (3, 299, 299), (3, 8, 112, 112), (3, 16, 224, 224))
        for size in sizes:
            yield (_normal(_BATCH, *size),), {}
    if loaded.kind in ("restorer", "detector"):
        multiple = loaded.side_multiple
        # Two multiples or more: the coarsest features are then more than one pixel.
        side = max(-(-max(32, loaded.least_side) // multiple), 2) * multiple
        for channels in (3, 1) if loaded.channels is None else (loaded.channels,):
            yield (_normal(_BATCH, channels, side, side).sigmoid(),), {}


def _of_transformers(network: Any) -> Iterator[Example]:
    """By the name of the main input, and the sizes in the configuration."""
    config, main = network.config, network.main_input_name
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = _number(text, ("vocab_size",), 100)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, max(vocabulary, 4), (_BATCH, _TOKENS), generator=generator)
    ids = ids.clamp(max=vocabulary - 1)
    vision = getattr(config, "vision_config", config)
    side = _number(vision, ("image_size",), 32)
    channels = _number(vision, ("num_channels", "in_channels", "in_chans"), 3)
    pixels = _normal(_BATCH, channels, side, side)
    frames_of_video = _number(vision, ("num_frames", "frames_per_clip"), 8)
    series = (_number(config, ("context_length",), 32), _number(config, ("num_input_channels",), 1))
    audio = getattr(config, "encoder_config", config)
    bins = _number(audio, ("num_mel_bins", "feature_size", "input_feat_per_channel"), 80)
    frames = 2 * _number(config, ("max_source_positions",), 50)
    named: dict[str, PyTree] = {
        "input_ids": ids,
        "pixel_values": pixels,
        "input_values": _normal(_BATCH, 1600) if not hasattr(config, "num_mel_bins")
        else _normal(_BATCH, _number(config, ("max_length",), 64), bins),
        "input_features": _normal(_BATCH, bins, frames),
        "inputs": ids,
        "bbox": torch.tensor([1, 2, 5, 7]).expand(_BATCH, _TOKENS, 4).contiguous(),
        "pixel_values_videos": _normal(_BATCH, frames_of_video, channels, side, side),
        "past_values": _normal(_BATCH, *series),
    }  # fmt: skip
    decoder = (
        {"decoder_input_ids": ids.clone()} if getattr(config, "is_encoder_decoder", False) else {}
    )
    if main in named:
        yield (), {main: named[main], **decoder}
        yield (), {main: named[main]}
    if main == "input_features":
        yield (), {main: _normal(_BATCH, 64, bins), **decoder}
    if main == "input_values":
        yield (), {main: pixels}
        yield (), {main: _normal(_BATCH, 1, 1600)}
    if main == "pixel_values":
        yield (), {main: named["pixel_values_videos"]}
        yield (), {main: _normal(_BATCH, channels, 64, 64)}
    yield (), {"input_ids": ids, "pixel_values": pixels}
    yield (), {"input_ids": ids, "bbox": named["bbox"], **decoder}
    required = [
        name
        for name, parameter in inspect.signature(network.forward).parameters.items()
        if parameter.default is parameter.empty and name in named
    ]
    yield (), {name: named[name] for name in required}
    yield (), {main: named.get(main, ids), **{name: named[name] for name in required}}
    dummy = getattr(network, "dummy_inputs", None)
    if isinstance(dummy, dict):
        yield (), {k: v for k, v in dummy.items() if isinstance(v, torch.Tensor)}


def _number(config: Any, names: Sequence[str], default: int) -> int:
    for name in names:
        value = getattr(config, name, None)
        value = value[0] if isinstance(value, (list, tuple)) and value else value
        if isinstance(value, int) and value > 0:
            return value
    return default


def _normal(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def settle(network: nn.Module) -> nn.Module:
    """The network with all floating parameters trainable, as gradients are checked."""
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(True)
    return network
