"""Values held in another form than the array that torch describes, and who may rewrite operators.

This is all that the core knows of lane folding (`interop/folding`), which implements it.
"""

import abc
from collections.abc import Callable
from typing import Any, Protocol

import jax
import torch


class DeferredArray(abc.ABC):
    """A value that becomes the array that torch describes when somebody needs that one."""

    @abc.abstractmethod
    def dense(self) -> jax.Array:
        """The array that torch describes."""

    @abc.abstractmethod
    def settled(self) -> "ChannelArray":
        """The form for other operators to read; a JAX pytree, which may enter transformations."""

    @abc.abstractmethod
    def map_array(self, function: Callable[[jax.Array], jax.Array]) -> "DeferredArray":
        """The same form around `function` of its array, which keeps shape and order."""


class ChannelArray(Protocol):
    """Images (N, C, ...) as an array in any layout, with the values that a normalisation needs."""

    @property
    def array(self) -> jax.Array:
        """The pixels, in the layout's order."""
        ...

    def moments(self, array: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(C,) each: mean and variance over images and pixels of an array in this layout."""
        ...

    def affine(
        self, array: jax.Array, mean: jax.Array, scale: jax.Array, shift: jax.Array
    ) -> jax.Array:
        """`(array - mean) * scale + shift` in this layout, with (C,) each."""
        ...

    def made_into(self, array: jax.Array, make: Callable[..., jax.Array], *values: Any) -> Any:
        """`array`, which is `make(self.array, *values)`, as a value of a tensor."""
        ...


class Rewriter(Protocol):
    """Computes operators in a form of its own, where that is faster; a trace has one or none."""

    def rewrite(
        self, trace: Any, func: torch._ops.OpOverload, args: tuple, kwargs: dict
    ) -> tuple[bool, Any]:
        """Runs an operator of a `Trace`, if it wants to.

        Returns:
          Whether it did, and the resulting tensors.
        """
        ...
