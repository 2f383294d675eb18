"""Pillow, where it is installed: for kernels that programs for CPUs call."""

import functools
from typing import Any

from jaxsr.ops._opencv import version_of


@functools.cache
def pillow() -> Any:
    """Its module `Image`, or None where it has no libjpeg-turbo, whose rules ours are."""
    try:
        from PIL import Image, features
    except ImportError:
        return None
    return Image if features.check_feature("libjpeg_turbo") else None


def pillow_version() -> tuple[int, ...] | None:
    """Numbers of Pillow and of its libjpeg-turbo (see `version_of`)."""
    if pillow() is None:
        return None
    from PIL import __version__, features

    version: str = features.version_feature("libjpeg_turbo") or ""
    return (*version_of(__version__), *version_of(version))
