"""Every case of the conformance suite."""

from tests.oracles.conformance import functions, functions_algebra, layers, modules, programs  # noqa: F401
from tests.oracles.conformance.registry import CASES

__all__ = ["CASES"]
