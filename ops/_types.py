"""Names of annotations. jaxtyping's where it is installed; nothing runs differently without it."""

from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Array, Bool, Float, Int, Shaped
    except ImportError:
        Array = jax.Array

        class Shaped:
            """An array of any shape and dtype."""

            def __class_getitem__(cls, _: Any) -> Any:
                return Array

        Bool = Float = Int = Shaped

__all__ = ["Array", "Bool", "Float", "Int", "Shaped"]
