"""Fixtures of several rooms."""

import pytest

from jaxsr.interop._core import registry


@pytest.fixture
def registry_copy(monkeypatch):
    """Registrations of a test end with it."""
    registry.load()
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    yield
    registry.resolve.cache_clear()
