"""Names of annotations. jaxtyping's where it is installed; nothing runs differently without it."""

from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, Shaped
else:
    try:
        from jaxtyping import Array, Float, Int, Shaped
    except ImportError:
        Array = jax.Array

        class Shaped:
            """An array of any shape and dtype."""

            def __class_getitem__(cls, _: Any) -> Any:
                return Array

        Float = Int = Shaped

__all__ = ["Array", "Float", "Int", "Shaped"]
