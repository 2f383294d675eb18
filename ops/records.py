"""Kernels and policies on the records of input pipelines: dictionaries of NumPy arrays.

A record holds one image or a batch, and its labels, under the names of `FIELDS` or of the caller's
choice. Results are NumPy arrays.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard, cast

import jax
import numpy as np

from jaxsr.ops._augment.batch import Step
from jaxsr.ops.augment import augment

FIELDS = {
    "images": "image",
    "masks": "mask",
    "boxes": "boxes",
    "points": "points",
    "labels": "label",
}
"""Names in records of `augment`'s arguments."""
Transform = Sequence[Step] | Step | Callable[[Any], jax.Array]


def transform_record(
    record: Mapping[str, Any],
    transform: Transform,
    seed: int,
    fields: Mapping[str, str] | None = None,
    *,
    axes: Sequence[int] = (-3, -2),
) -> dict[str, Any]:
    """A record with its image changed, and all that moves with it.

    Args:
      record: with (height, width, channels), or a batch of them, in the image's field; other fields
        stay.
      transform: a policy or a step for `augment`, or a kernel, which changes the image alone.
      seed: of a policy, from 0 to 2³² - 1.
      fields: names in the record; see `FIELDS`, whose other entries hold.
      axes: the height and the width axis.

    Raises:
      KeyError: the record has no image.
      ValueError: as `augment` and the kernel.

    Example:
      >>> record = {"image": np.zeros((8, 9, 3), np.uint8), "name": "a"}
      >>> out = ops.transform_record(record, (ops.RandomResizedCrop(size=4),), seed=0)
      >>> out["image"].shape, out["name"]
      ((4, 4, 3), 'a')
    """
    names = {**FIELDS, **(fields or {})}
    if _is_kernel(transform):
        image = names["images"]
        return {**record, image: np.asarray(transform(record[image]))}
    single = np.ndim(record[names["images"]]) == 3
    arguments = {
        argument: np.asarray(record[name])[None] if single else np.asarray(record[name])
        for argument, name in names.items()
        if record.get(name) is not None
        # Numbers of classes are none of their shares.
        and (argument != "labels" or np.ndim(record[name]) == 2 - single)
    }
    images = arguments.pop("images")
    out = augment(jax.random.key(seed), images, cast(Any, transform), axes=axes, **arguments)
    changed = {names[argument]: value for argument, value in out._asdict().items()}
    arrays = {name: np.asarray(value) for name, value in changed.items() if value is not None}
    return {**record, **{name: x[0] if single else x for name, x in arrays.items()}}


def as_grain(
    transform: Transform,
    fields: Mapping[str, str] | None = None,
    *,
    axes: Sequence[int] = (-3, -2),
) -> Any:
    """A transformation of Grain, for `DataLoader(operations=…)`, `.map` and `.random_map`.

    JAX runs in the process of the transformation: after batching, without worker processes, it
    uses the device.

    Args:
      transform: a policy or a step for `augment` gives a `RandomMap`, a kernel a `Map`.
      fields, axes: see `transform_record`.

    Raises:
      ImportError: Grain is not installed.

    Example:
      >>> resize = ops.as_grain(lambda image: ops.resize(image, 4))
      >>> resize.map({"image": np.zeros((8, 8, 3), np.uint8)})["image"].shape
      (4, 4, 3)
    """
    transforms: Any = importlib.import_module("grain.transforms")

    class KernelMap(transforms.Map):
        def map(self, element: Mapping[str, Any]) -> dict[str, Any]:
            return transform_record(element, transform, 0, fields, axes=axes)

    class PolicyMap(transforms.RandomMap):
        def random_map(
            self, element: Mapping[str, Any], rng: np.random.Generator
        ) -> dict[str, Any]:
            seed = int(rng.integers(1 << 32))
            return transform_record(element, transform, seed, fields, axes=axes)

    return KernelMap() if _is_kernel(transform) else PolicyMap()


def _is_kernel(transform: Transform) -> TypeGuard[Callable[[Any], jax.Array]]:
    """Whether it takes an image, and not a step's keys, batch and layout."""
    return callable(transform) and (_takes(transform, 1) or not _takes(transform, 3))


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):  # also of functions in C, which have no signature
        return False
    return True
