"""Which combinations of parameters the quick suite runs."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def every_pair(*axes: Sequence[Any]) -> list[Any]:
    """The product of `axes` for `parametrize`, in which every two values meet without slow tests.

    Combinations beyond those are marked slow. Quick are those whose places sum up to a multiple of
    a number, the largest one that leaves no pair of values out.
    """
    places = list(itertools.product(*(range(len(axis)) for axis in axes)))

    def pairs(chosen: list[tuple[int, ...]]) -> set[tuple[int, int, int, int]]:
        both = itertools.combinations(range(len(axes)), 2)
        return {(a, b, place[a], place[b]) for a, b in both for place in chosen}

    diagonals = [[p for p in places if sum(p) % n == 0] for n in range(1, len(places))]
    quick = next(d for d in reversed(diagonals) if pairs(d) == pairs(places))
    return [
        pytest.param(
            *(axis[i] for axis, i in zip(axes, place, strict=True)),
            marks=[] if place in quick else [pytest.mark.slow],
        )
        for place in places
    ]
