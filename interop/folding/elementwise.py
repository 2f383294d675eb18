"""Operations on folded images that take one element at a time.

For the gradient two things are recomputed, not stored: maps of one channel repeated for all
channels, and images that can be computed from arrays that are stored in any case.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.dispatch import PLACEMENT_OPTIONS
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import Kind, resolve
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.folding.layout import (
    Folded,
    Maker,
    aligned,
    fold,
    refold,
    spread_channels,
    spread_columns,
    unfold,
)
from jaxsr.interop.folding.pixel_shuffle import Shuffled
from jaxsr.interop.folding.policy import LaneFolding

LANEWISE = (Kind.USER, Kind.LOWERING, Kind.TORCHAX)
"""Kinds whose function computes one element at a time on lanes as well."""
_EXTRA_POINTWISE = {aten.clone.default, aten._to_copy.default, aten._prelu_kernel.default}
# Finite for all finite values, and so in the columns that fill the last group.
_FINITE = {
    "add", "sub", "rsub", "mul", "relu", "leaky_relu", "_prelu_kernel", "sigmoid", "tanh", "where",
    "neg", "clone", "_to_copy", "maximum", "minimum", "silu", "abs", "clamp", "clamp_min",
    "clamp_max", "hardtanh", "hardswish", "relu6", "gt", "lt", "ge", "le", "eq", "ne",
}  # fmt: skip


def leaves(args: tuple, kwargs: dict) -> list:
    """All arguments, those in lists one by one."""
    result = []
    for value in (*args, *kwargs.values()):
        result.extend(value) if isinstance(value, (list, tuple)) else result.append(value)
    return result


def is_pointwise(func: torch._ops.OpOverload) -> bool:
    """Whether each element of the result depends on those at its place alone, and on no chance."""
    if func in _EXTRA_POINTWISE:
        return True
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    return torch.Tag.pointwise in func.tags and not seeded and not func._schema.is_mutable


def pointwise(
    folding: LaneFolding,
    func: "torch._ops.OpOverload[..., Any]",
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    meta: torch.Tensor,
) -> Folded | Shuffled | None:
    """The rule of all such operations: images in one layout, and arrays that broadcast."""
    entry = resolve(func)
    if entry.kind not in LANEWISE or entry.function is None:
        return None
    if not isinstance(meta, torch.Tensor) or meta.dim() != 4:
        return None
    lowered = entry.function
    tensors = [t for t in leaves(args, kwargs) if isinstance(t, JaxTensor)]
    shape = tuple(meta.shape)
    result = _on_shuffled(lowered, tensors, shape, args, kwargs)
    if result is not None:
        return result
    # The present value: a write may replace it before the value without offset is needed. By
    # position, not identity: the order of a gradient's stored values is part of the program.
    position: dict[int, int] = {}
    for tensor in tensors:
        position.setdefault(id(tensor), len(position))
    contents = {position[id(t)]: t.content() for t in tensors}
    full_size = [v for v in contents.values() if isinstance(v, Folded) and v.shape == shape]
    if not full_size:
        return None
    like = next((v for v in full_size if not v.offset), full_size[0])
    if any(v.parts != like.parts or v.fold != like.fold for v in full_size):
        like = refold(like, like.fold, offset=like.offset)
    guards = func.overloadpacket.__name__ not in _FINITE

    def made(like: Folded) -> Folded:
        def run(values: dict[int, jax.Array]) -> jax.Array:
            def lanes(value: Any) -> Any:
                if not isinstance(value, JaxTensor):
                    return value
                array = values[position[id(value)]]
                if guards and like.padded and array.ndim == 4 and array.shape[2] == like.groups:
                    array = jnp.where(like._inside(), array, jnp.ones((), array.dtype))
                return array

            return _called(lowered, lanes, args, kwargs)

        images = {
            key: _laid_out(value, like)
            for key, value in contents.items()
            if isinstance(value, Folded) and value.channels == like.channels
        }
        values = {k: _in_lanes(images.get(k, value), like) for k, value in contents.items()}
        result = _with_maps(run, values, images, like)
        small = {key: value for key, value in values.items() if _is_small(value)}
        if len(images) != 1 or len(images) + len(small) < len(values):
            return like.holding(result)
        ((key, image),) = images.items()
        return image.made_into(result, lambda array, small: run({key: array, **small}), small)

    result = made(like)
    if not like.offset:
        return result
    sources = [v.maker for v in full_size if v.maker is not None]
    return dataclasses.replace(result, maker=Maker(lambda: made(aligned(like)), sources=sources))


def _called(lowered: Callable, lanes: Callable[[Any], Any], args: tuple, kwargs: dict) -> jax.Array:
    named = {k: lanes(v) for k, v in kwargs.items() if k not in PLACEMENT_OPTIONS}
    return lowered(*(lanes(v) for v in args), **named)


def _on_shuffled(
    lowered: Callable, tensors: list[JaxTensor], shape: tuple[int, ...], args: tuple, kwargs: dict
) -> Shuffled | None:
    """On pixels as before a pixel shuffle, if all images lie so and all else fits."""
    full_size = [t.deferred for t in tensors if tuple(t.shape) == shape]
    images = [i for i in full_size if isinstance(i, Shuffled)]
    if not full_size or len(images) < len(full_size):
        return None
    like = images[0]
    if any(i.layout != like.layout for i in images):
        return None
    if not all(tuple(t.shape) == shape or like.fits(t.shape) for t in tensors):
        return None

    def lanes(value: Any) -> Any:
        if not isinstance(value, JaxTensor):
            return value
        image = value.deferred
        return image.array if isinstance(image, Shuffled) else like.in_lanes(value.array())

    return like.holding(_called(lowered, lanes, args, kwargs))


class _Map(NamedTuple):
    """One value for each pixel, which meets all channels of an image."""

    content: Folded | jax.Array
    """A value of one channel; an array is (N or 1, 1, H or 1, W)."""

    def in_lanes(self, like: Folded) -> jax.Array:
        if isinstance(self.content, Folded):
            image = refold(self.content, like.fold, offset=like.offset)
        else:
            image = fold(self.content, like.fold, offset=like.offset)
        return spread_columns(image.array, like)


def _laid_out(image: Folded, like: Folded) -> Folded:
    """An image of as many channels, in the layout of `like`."""
    if image.layout == like.layout:
        return image
    return _parted(refold(image, like.fold, offset=like.offset), like)


def _in_lanes(value: Any, like: Folded) -> jax.Array | _Map:
    """A value that broadcasts against an image, as one that does against the folded array."""
    if isinstance(value, Folded):
        if value.channels == like.channels:
            return _laid_out(value, like).array
        # Its origin is known only here.
        same_layout = (value.fold, value.offset) == (like.fold, like.offset)
        return _Map(value if same_layout else aligned(value))
    if value.ndim == 0:
        return value
    value = value.reshape((1,) * (4 - value.ndim) + value.shape)
    if value.shape[3] == 1:
        value = value.transpose(0, 2, 3, 1)
        return value if value.shape[3] == 1 else spread_channels(value, like)
    if value.shape[1] == 1:
        return _Map(value)
    return fold(value, like.fold, like.parts, offset=like.offset).array


def _is_small(value: jax.Array | _Map) -> bool:
    """Whether it is at most a value for each channel of each image."""
    return not isinstance(value, _Map) and (value.ndim == 0 or value.shape[1:3] == (1, 1))


def _with_maps(
    run: Callable[[dict[int, jax.Array]], jax.Array],
    values: dict[int, jax.Array | _Map],
    images: dict[int, Folded],
    like: Folded,
) -> jax.Array:
    """`run`, with maps repeated for each channel.

    A gradient repeats them anew: kept as they are here, they would be as large as the image. So it
    makes the `images` that have a recipe.
    """

    recipes = {k: image.recipe for k, image in images.items() if image.recipe is not None}

    def repeated(values: dict[int, jax.Array | _Map], recipe_values: dict[int, tuple]) -> jax.Array:
        lanes = {k: v.in_lanes(like) if isinstance(v, _Map) else v for k, v in values.items()}
        remade = {k: _same(lanes[k], recipes[k].make(*v)) for k, v in recipe_values.items()}
        return run({**lanes, **remade})

    if like.fold == 1 or not any(isinstance(value, _Map) for value in values.values()):
        return repeated(values, {})
    return jax.checkpoint(repeated)(values, {k: recipe.values for k, recipe in recipes.items()})


@jax.custom_jvp
def _same(array: jax.Array, remade: jax.Array) -> jax.Array:
    """`again`, with the derivative of `array`, its equal, which need not be kept then."""
    return remade


@_same.defjvp
def _same_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    return primals[1], tangents[0]


def _parted(x: Folded, like: Folded) -> Folded:
    if x.parts == like.parts:
        return x
    return fold(unfold(x), like.fold, like.parts, offset=like.offset)
