"""Image kernels: jitted, differentiable, and exact in the convention that they name."""

from jaxsr.ops.resize import resize

__all__ = ["resize"]
