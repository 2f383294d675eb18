"""Orthogonal polynomials by their recurrences; orders may be traced. Torch has no gradient."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxsr.interop._core.dtypes import widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop.lowerings.elementwise import common_dtype

Step = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def polynomial(x: jax.Array, order: jax.Array, first: jax.Array, step: Step) -> jax.Array:
    """P_order(x), of P_0 = 1, P_1 = `first` and P_k = `step(k, x, P_(k-1), P_(k-2))`.

    Orders are cut to whole numbers; a negative one gives 0.
    """
    order = jnp.trunc(order)

    def advance(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        k, last, before = state
        following = step(k, x, last, before)
        goes_on = k <= order
        return k + 1, jnp.where(goes_on, following, last), jnp.where(goes_on, last, before)

    begin = (jnp.full((), 2, x.dtype), first, jnp.ones_like(x))
    highest = order.max(initial=0)
    _, value, _ = lax.while_loop(lambda state: state[0] <= highest, advance, begin)
    return jnp.where(order < 0, 0, jnp.where(order == 0, 1, value))


def _chebyshev(k: jax.Array, x: jax.Array, last: jax.Array, before: jax.Array) -> jax.Array:
    return 2 * x * last - before


def _legendre(k: jax.Array, x: jax.Array, last: jax.Array, before: jax.Array) -> jax.Array:
    return ((2 * k - 1) * x * last - (k - 1) * before) / k


def _register(name: str, first: Callable[[jax.Array], jax.Array], step: Step, shift: bool) -> None:
    packet = getattr(aten, name)

    def lowering(x: ArrayLike, order: ArrayLike) -> jax.Array:
        x, order = (widened(v) for v in common_dtype(x, order))
        x = 2 * x - 1 if shift else x
        return polynomial(x, order, first(x), step)

    lowers(packet.default, packet.x_scalar, packet.n_scalar)(lowering)


_FIRST: dict[str, Callable[[jax.Array], jax.Array]] = {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}
for _kind, _first in _FIRST.items():
    _register(f"special_chebyshev_polynomial_{_kind}", _first, _chebyshev, False)
    _register(f"special_shifted_chebyshev_polynomial_{_kind}", _first, _chebyshev, True)
_register("special_legendre_polynomial_p", lambda x: x, _legendre, False)
