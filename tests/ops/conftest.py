"""Which kernels the programs of a test call."""

from collections.abc import Iterator

import jax
import pytest

from jaxsr.xla_calls.calls import SWITCH


@pytest.fixture(scope="module")
def xla_kernels() -> Iterator[None]:
    """XLA's alone: libraries are the oracle, so programs may not call them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "xla")
        jax.clear_caches()
        yield
    jax.clear_caches()
