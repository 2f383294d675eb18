"""How far JAX may be from float64: at most a factor further than float32 torch is.

The error of an array is its largest absolute difference from the float64 referee. Three things
bound JAX's: `FACTOR` times torch's error; `FACTOR` times the noise, which is how far the referee
moves when every weight and input is rounded once; and `FLOOR_ULPS` steps of float32 at the array's
largest value, for arrays whose error in torch happens to be next to nothing. No error may exceed
`MOST`, unless JAX and float32 torch agree.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

FACTOR = 8.0
"""JAX may be this many times further from float64 than torch is."""
FLOOR_ULPS = 32.0
"""Steps of float32 at the array's largest value that are always allowed."""
MOST = 2.0**-3
"""Share of an array's largest value: a larger error is a difference, however far torch is off."""
ILL_CONDITIONED_ULPS = 4096.0
"""Where float32 torch is further from float64 than this, the computation amplifies rounding."""
ULP = 2.0**-23
LEAST_SCALE = 2.0**-10
"""Share of the largest array of a group: below it a value may be rounding that cancelled, not a
result, as the gradient of a bias in front of a BatchNorm."""

_NOTHING = 2.0**-30
"""Share of `LEAST_SCALE`: below it, float64 has a zero that float32 cannot find."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class ArrayError:
    """One array in torch and in JAX, against the referee."""

    name: str
    shape: tuple[int, ...]
    error: float
    """Largest difference of JAX from the referee, relative to `scale`; infinite for a wrong
    shape, and for a value that is finite in one of both only."""
    torch_error: float
    """The same of float32 torch."""
    noise: float = 0.0
    """How far one rounding of all weights and inputs moves the referee, relative to `scale`."""
    scale: float
    """The referee's largest absolute value."""
    rounding: float = FLOOR_ULPS * ULP
    """An `error` that is always allowed."""
    apart: float = math.inf
    """Largest difference of JAX from float32 torch, relative to `scale`."""

    @property
    def bound(self) -> float:
        """The largest `error` that is allowed."""
        allowed = max(FACTOR * self.torch_error, FACTOR * self.noise, self.rounding)
        return min(allowed, max(MOST, self.rounding))

    @property
    def ratio(self) -> float:
        """Error in units of the bound."""
        return self.error / self.bound

    @property
    def ok(self) -> bool:
        return self.error <= self.bound or self.apart <= self.rounding

    @property
    def condition(self) -> float:
        """Steps of float32 by which torch itself is off: 1 is perfect, 1e4 is ill-conditioned."""
        return max(self.torch_error, self.noise) / ULP


def compare_arrays(
    jax_arrays: Arrays,
    torch_arrays: Arrays,
    reference: Arrays,
    *,
    noise: Mapping[str, float] | None = None,
    rounding: float = FLOOR_ULPS * ULP,
    least_scale: float = LEAST_SCALE,
    related: bool = True,
) -> list[ArrayError]:
    """The errors of a group of arrays, by name.

    Args:
      jax_arrays: results of JAX.
      torch_arrays: results of float32 torch.
      reference: results of float64 torch; its names are the group's.
      noise: absolute, by name; see `ArrayError.noise`.
      rounding: see `ArrayError.rounding`; larger for narrower dtypes.
      least_scale: of the group's largest array; larger for narrower dtypes.
      related: the arrays are of one computation, as gradients are. Of others, an array is judged by
        the largest one only as far as rounding shows in it.
    """
    arrays = {
        name: _without_mask(exact, torch_arrays[name], jax_arrays.get(name))
        for name, exact in reference.items()
    }
    scales = {name: _scale(exact) for name, (exact, _, _) in arrays.items()}
    # An array that is exact, such as a mask of the dtype's least value, does not show rounding.
    rounded = [scales[n] for n, (exact, value, _) in arrays.items() if not _is_exact(exact, value)]
    least = least_scale * max(rounded, default=0.0)
    errors = []
    for name, (exact, torch_array, jax_array) in arrays.items():
        scale, torch_error = scales[name], _distance(torch_array, exact, torch_array)
        if exact.dtype.kind in "fc":
            seen = max(torch_error, (noise or {}).get(name, 0.0))
            is_nothing = scale < least * _NOTHING
            scale = max(scale, least if related or is_nothing else min(least, 64 * seen))
        scale = scale or 1.0
        error = apart = math.inf
        if jax_array is not None:
            error = _distance(jax_array, exact, torch_array)
            apart = _distance(jax_array, torch_array)
        errors.append(
            ArrayError(
                name=name,
                shape=reference[name].shape,
                error=error / scale,
                torch_error=torch_error / scale,
                noise=(noise or {}).get(name, 0.0) / scale,
                scale=scale,
                rounding=rounding,
                apart=apart / scale,
            )
        )
    return errors


def _without_mask(
    exact: np.ndarray, torch_array: np.ndarray, jax_array: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The arrays without one value, equal in torch and JAX, next to which all others are nothing.

    Logits are masked by -1e9 or the dtype's least value.
    """
    shapes = {exact.shape, torch_array.shape, getattr(jax_array, "shape", None)}
    if jax_array is None or len(shapes) > 1 or exact.dtype.kind not in "fc" or exact.size < 2:
        return exact, torch_array, jax_array
    sizes = np.where(np.isfinite(torch_array), np.abs(torch_array), 0)
    peak = torch_array.flat[sizes.argmax()]
    masked = torch_array == peak
    others = sizes[~masked].max(initial=0)
    if 0 < others < sizes.max() * 2.0**-16 and (jax_array[masked] == peak).all():
        return exact[~masked], torch_array[~masked], jax_array[~masked]
    return exact, torch_array, jax_array


def distances(first: Arrays, second: Arrays) -> dict[str, float]:
    """The largest absolute difference of each array; 0 where an array is in one only."""
    return {name: _distance(first[name], second[name]) for name in first if name in second}


def _is_exact(exact: np.ndarray, value: np.ndarray) -> bool:
    return exact.shape == value.shape and bool(_equal(value.astype(exact.dtype), exact).all())


def _scale(array: np.ndarray) -> float:
    if array.dtype.kind not in "fc":
        return 1.0
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max(initial=0.0))


def _distance(value: np.ndarray, exact: np.ndarray, torch_value: np.ndarray | None = None) -> float:
    """The largest absolute difference; whole numbers count 1 for each difference."""
    if value.shape != exact.shape:
        return math.inf
    if exact.dtype.kind not in "fc":
        return float(np.count_nonzero(value != exact))
    value, exact = value.astype(exact.dtype), np.asarray(exact)
    torch_value = exact if torch_value is None else torch_value.astype(exact.dtype)
    # float32 overflows where float64 does not, and the other way round at a pole: accept either
    # value there.
    special = ~np.isfinite(exact) | ~np.isfinite(torch_value)
    same = _equal(value, exact) | _equal(value, torch_value)
    special &= same | ~np.isfinite(exact)
    if not same[special].all():
        return math.inf
    rest = np.abs(value[~special] - exact[~special])
    return math.inf if np.isnan(rest).any() else float(rest.max(initial=0.0))


def _equal(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first == second) | (np.isnan(first) & np.isnan(second))
