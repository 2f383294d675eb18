"""Emulates a TPU's default precision: float32 products of operands rounded to bfloat16.

A TPU rounds the operands of matrix products and convolutions, and nothing else. Products of
8-significand-bit numbers are exact, and their sums are float32 on both. So a CPU can predict which
operations of a network will differ on a TPU, and by how much. Source: the documentation of
`jax.lax.Precision`, whose DEFAULT is one pass in bfloat16 on a TPU.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core import primitives as known
from jax.typing import ArrayLike

from jaxsr.errors import InputError
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.lowerings import dot_product_attention
from jaxsr.interop.lowerings.convolution import biased_p, convolution_p

PRODUCTS = (known.dot_general_p, known.conv_general_dilated_p, convolution_p, biased_p)
"""Their first two operands are multiplied."""
_CALLS = {
    known.jit_p: "jaxpr",
    known.closed_call_p: "call_jaxpr",
    known.custom_jvp_call_p: "call_jaxpr",
    known.custom_vjp_call_p: "call_jaxpr",
    known.remat_p: "jaxpr",
}
"""Primitives that only run an inner program, and the parameter that contains it."""
_LOOPS = (known.scan_p, known.while_p, known.cond_p)


def emulate_bf16_matmul(function: Callable) -> Callable:
    """The function with the operands of float32 products rounded to bfloat16, ties to even.

    Args:
      function: of pytrees of arrays; traced once more for each call, so best used under `jax.jit`.
        The result's derivatives are those of the products, not of the rounding.

    Raises:
      ValueError: the function holds an operation of JAX with a program of its own that
        this module does not know.
    """

    def run(*args: PyTree) -> PyTree:
        traced, result = jax.make_jaxpr(function, return_shape=True)(*args)
        leaves = _run(traced.jaxpr, traced.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(result), leaves)

    return run


def _run(program: Jaxpr, consts: Sequence[ArrayLike], args: Sequence[ArrayLike]) -> list:
    values: dict[Var, ArrayLike] = dict(zip(program.constvars, consts, strict=True))
    values |= zip(program.invars, args, strict=True)

    def read(variable: Var | Literal) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in program.eqns:
        results = _run_one(equation, [read(v) for v in equation.invars])
        values |= zip(equation.outvars, results, strict=True)
    return [read(v) for v in program.outvars]


def _run_one(equation: JaxprEqn, operands: list) -> Sequence:
    primitive, params = equation.primitive, dict(equation.params)
    if primitive in dot_product_attention.PLAIN:
        plain = functools.partial(dot_product_attention.PLAIN[primitive], **params)
        inner = jax.make_jaxpr(plain)(*operands)
        return _run(inner.jaxpr, inner.consts, operands)
    if primitive in _CALLS:
        inner = params[_CALLS[primitive]]
        return _run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands)
    if primitive in PRODUCTS and _takes_one_pass(params["precision"]):
        operands = [*map(_rounded, operands[:2]), *operands[2:]]
    for name, value in params.items():
        programs = _programs(value)
        if not any(_has_products(program) for program in programs):
            continue
        closed = [program for program in programs if isinstance(program, ClosedJaxpr)]
        if primitive not in _LOOPS or len(closed) < len(programs):
            raise InputError(
                f"products inside {primitive.name} cannot be rounded; use precision=highest"
            )
        narrowed = tuple(_narrowed(program) for program in closed)
        params[name] = narrowed if isinstance(value, (tuple, list)) else narrowed[0]
    with equation.ctx.manager:  # whether JAX had 64 bits there, say
        results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return results if primitive.multiple_results else [results]


def _takes_one_pass(precision: object) -> bool:
    """Whether a TPU would round: a program may ask for more in places, and gets it."""
    return all(p in (None, jax.lax.Precision.DEFAULT) for p in _several(precision))


def _several(value: object) -> Sequence:
    return value if isinstance(value, (tuple, list)) else [value]


def _programs(value: object) -> list[Jaxpr | ClosedJaxpr]:
    return [p for p in _several(value) if isinstance(p, (Jaxpr, ClosedJaxpr))]


def _has_products(program: Jaxpr | ClosedJaxpr) -> bool:
    return any(
        equation.primitive in (*PRODUCTS, *dot_product_attention.PLAIN)
        or any(_has_products(p) for value in equation.params.values() for p in _programs(value))
        for equation in getattr(program, "jaxpr", program).eqns
    )


def _narrowed(program: ClosedJaxpr) -> ClosedJaxpr:
    return jax.make_jaxpr(emulate_bf16_matmul(jaxpr_as_fun(program)))(*program.in_avals)


def _rounded(x: jax.Array) -> jax.Array:
    # Compilers remove a cast to bfloat16 and back.
    return jax.lax.reduce_precision(x, 8, 7) if x.dtype == jnp.float32 else x
