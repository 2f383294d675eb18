"""Types that recur in annotations and have no name of their own in JAX or torch."""

from typing import Any, TypeAlias

PyTree: TypeAlias = Any
"""Leaves in dictionaries, lists, tuples and registered classes, as `jax.tree` takes them."""

JsonObject: TypeAlias = dict[str, Any]
"""Values of a JSON object: strings, numbers, booleans, None, lists and objects by name."""
