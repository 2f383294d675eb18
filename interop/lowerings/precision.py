"""The precision that JAX is set to, for primitives whose products are lowered later."""

import jax
from jax import lax


def matmul_precision() -> lax.Precision | None:
    """As for JAX's own products, the setting at the time of tracing."""
    precision = jax.config.jax_default_matmul_precision
    return None if precision is None else lax.Precision(precision)
