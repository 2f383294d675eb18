"""Libraries that examples need beside torch."""

from typing import Any

import pytest

from jaxsr.errors import InputError
from jaxsr.models.libraries import import_library


@pytest.fixture
def needs():
    """Skips where a library is not installed."""

    def library(name: str) -> Any:
        try:
            import_library("torchvision")
            return import_library(name)
        except InputError as error:
            pytest.skip(str(error))

    return library
