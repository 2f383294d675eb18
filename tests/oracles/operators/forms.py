"""Results that are not unique, as what defines them: equal where torch and JAX are both right.

An index among equal elements becomes the element that it names; a factorisation its product, and
its factors' products with themselves, which say that they are orthonormal.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Named = dict[str, np.ndarray]
Form = Callable[[tuple[Any, ...], dict[str, Any], Named], Named]

FORMS: dict[str, Form] = {}
"""By operator: a function of its arguments and its outputs. Others have unique results."""


def _of(*names: str) -> Callable[[Form], Form]:
    def register(form: Form) -> Form:
        FORMS.update(dict.fromkeys(names, form))
        return form

    return register


@_of(
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
)  # fmt: skip
def uninitialised(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
    """Values are whatever the memory holds."""
    return {n: np.zeros_like(a) for n, a in outputs.items()}


DRAWN_OTHERWISE = ("nn.functional.rrelu",)
"""Random operators whose numbers follow from the key in another way than their `TorchDraws`: their
distribution alone is compared, and no gradient."""
_of(*DRAWN_OTHERWISE)(uninitialised)


# ---- which of equal elements


def _option(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, default: Any
) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)


def _elements(array: np.ndarray, index: np.ndarray, dim: int, *, reduced: bool) -> np.ndarray:
    """Elements that indices along `dim` name; an index out of range fails."""
    array, index = np.atleast_1d(array), index.astype(np.int64)
    if reduced and index.ndim < array.ndim:
        index = np.expand_dims(index, dim)
    index = np.atleast_1d(index)
    if ((index < 0) | (index >= max(array.shape[dim], 1))).any():
        return np.full(index.shape, np.nan)
    return np.take_along_axis(array, index, dim)


def _index_form(*names: str, place: int, index: str = "out1", dim: int = -1) -> None:
    """Indices along an axis become the elements, and are counted: each names another one."""

    def form(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
        if index not in outputs:
            return outputs  # the values of all elements
        along = _option(args, kwargs, place, "dim", dim)
        chosen = outputs[index]
        ordered = np.sort(np.atleast_1d(chosen), along)
        distinct = np.count_nonzero(np.diff(ordered, axis=along) == 0)
        result = {
            **outputs,
            index: _elements(args[0], chosen, along, reduced=reduces),
            "equal indices": np.asarray(0 if reduces else distinct),
        }
        if names == ("topk",) and not _option(args, kwargs, 4, "sorted", True):
            result |= {n: np.sort(result[n], along) for n in ("out0", index)}
        return result

    reduces = names[0] not in ("sort", "argsort", "topk")
    _of(*names)(form)


_index_form("sort", place=1)
_index_form("argsort", place=1, index="out0")
_index_form("topk", place=2)
_index_form("kthvalue", place=2)
_index_form("median", "nanmedian", "mode", place=1)


# ---- factorisations


FACTORISATIONS = ("svd_lowrank", "pca_lowrank")
"""They draw to begin with, but their results are not draws."""


def _transposed(a: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(a, -1, -2))


def _singular(u: np.ndarray, s: np.ndarray, vh: np.ndarray) -> Named:
    rank = s.shape[-1]
    return {
        "S": s,
        "U S Vh": (u[..., :rank] * s[..., None, :]) @ vh[..., :rank, :],
        "Uh U": _transposed(u) @ u,
        "Vh V": vh @ _transposed(vh),
    }


@_of("linalg.svd")
def _svd(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
    return _singular(*outputs.values())


@_of("svd", "svd_lowrank", "pca_lowrank")
def _svd_of_columns(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
    u, s, v = outputs.values()
    if not _option(args, kwargs, 2, "compute_uv", True):
        return outputs  # torch fills U and V with zeros
    return _singular(u, s, _transposed(v))


@_of("linalg.eigh", "symeig")
def _eigh(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
    values, vectors = outputs.values()
    return {
        "values": values,
        "V L Vh": (vectors * values[..., None, :]) @ _transposed(vectors),
        "Vh V": _transposed(vectors) @ vectors,
    }


def _characteristic(values: np.ndarray) -> np.ndarray:
    """Coefficients of the polynomial with these zeros, which do not depend on their order."""
    if not values.size:
        return values
    flat = values.reshape(-1, values.shape[-1])
    rows = [np.poly(row).astype(values.dtype) for row in flat]
    return np.reshape(rows, (*values.shape[:-1], -1))


@_of("linalg.eigvals")
def _eigvals(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
    return {"characteristic": _characteristic(outputs["out0"])}


@_of("linalg.eig")
def _eig(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
    values, vectors = outputs.values()
    return {
        "characteristic": _characteristic(values),
        "A V - V L": 1 + args[0] @ vectors - vectors * values[..., None, :],
        "norms": np.linalg.norm(vectors, axis=-2),
    }


def _of_triangles(lower: np.ndarray, upper: np.ndarray) -> Named:
    eye = np.eye(lower.shape[-2], lower.shape[-1], dtype=bool)
    return {
        "diagonal of L": np.where(eye, lower, 0),
        "above L": np.triu(lower, 1),
        "L is at most 1": np.asarray((np.abs(lower) <= 1 + 1e-6).all()),
        "below U": np.tril(upper, -1),
    }


@_of("linalg.lu")
def _lu(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
    permutation, lower, upper = outputs.values()
    pivots = _option(args, kwargs, 1, "pivot", True)
    product = permutation @ (lower @ upper) if pivots else lower @ upper
    return {"P L U": product, **(_of_triangles(lower, upper) if pivots else {"L": lower})}


@_of("linalg.inv_ex", "linalg.solve_ex")
def _where_it_exists(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
    """Leaves singular matrices out: torch returns the part that LAPACK had computed so far."""
    values, info = outputs.values()
    is_singular = info.reshape(info.shape + (1,) * (values.ndim - info.ndim)) > 0
    return {"values": np.where(is_singular, 0, values), "info": info}


@_of("lu", "linalg.lu_factor", "linalg.lu_factor_ex")
def _packed_lu(args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Named) -> Named:
    packed, pivots, *info = outputs.values()
    rows, columns = packed.shape[-2:]
    rank = min(rows, columns)
    lower = np.tril(packed[..., :rank], -1) + np.eye(rows, rank, dtype=packed.dtype)
    product = lower @ np.triu(packed[..., :rank, :])
    flat, swaps = product.reshape(-1, rows, columns).copy(), pivots.reshape(-1, pivots.shape[-1])
    for matrix, order in zip(flat, swaps, strict=True):
        for row, other in reversed([*enumerate(order - 1)]):
            matrix[[row, other]] = matrix[[other, row]]
    bounded = np.asarray((np.abs(np.tril(packed, -1)) <= 1 + 1e-6).all())
    named = {f"info{i}": a for i, a in enumerate(info)}
    return {"P L U": flat.reshape(product.shape), "L is at most 1": bounded, **named}
