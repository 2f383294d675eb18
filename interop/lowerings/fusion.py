"""Functions for inference, with convolutions fused with their neighbours."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.extend.core import jaxpr_as_fun

from jaxsr.interop.lowerings.concatenated_convolution import without_concatenations
from jaxsr.interop.lowerings.fused_convolution import with_followers

ResultT = TypeVar("ResultT")


def fused(function: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """The same function, with convolutions fused with the operations before and after them."""

    @functools.wraps(function)
    def run(*args: Any) -> ResultT:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        program = without_concatenations(with_followers(closed))
        results = jaxpr_as_fun(program)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run
