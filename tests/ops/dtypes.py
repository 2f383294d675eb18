"""Dtypes of pictures that every kernel takes."""

import pytest

EVERY_DTYPE = (
    "float32",
    pytest.param("bfloat16", marks=pytest.mark.slow),
    "uint8",
    # Programs for it are those for uint8 but for a scale.
    pytest.param("uint16", marks=pytest.mark.slow),
)
