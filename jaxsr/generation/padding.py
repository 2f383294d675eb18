"""Prompts of different lengths as one matrix: buckets of lengths, padding, cache sizes.

Lengths are rounded up to buckets so that few programs are compiled; the padding's contents are
never read.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxsr.errors import InputError

Padding = Literal["right", "left"]

SMALLEST_BUCKET = 16
_LEAST_SLOTS = 256


def bucket(length: int) -> int:
    """The size at or above `length`: a power of two from 16 on, or above 128 three halves of one.

    For long prompts, padding costs more than another program.
    """
    power = max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())
    less = power // 4 * 3
    return less if length <= less and less > 128 else power


def cache_slots(prompt_length: int, max_new_tokens: int, *, context: int) -> int:
    """Slots that a prompt of this length and its output need, rounded up.

    256, 512, 1024 and buckets above: each size has a program of its own to compile, and attention
    reads the whole cache at every step. Rounding does not pass the `context`, for some networks
    have tables of its size.
    """
    return rounded_slots(bucket(prompt_length) + max_new_tokens, context=context)


def rounded_slots(need: int, *, context: int) -> int:
    """`cache_slots` of so many tokens."""
    rounded = max(_LEAST_SLOTS, 1 << (need - 1).bit_length()) if need <= 1024 else bucket(need)
    return max(need, min(rounded, context))


LEAST_PACKED = 64
"""Tokens that prompts are packed into at least."""


def packed(prompts: Sequence[Sequence[int]], *, places: int) -> dict[str, np.ndarray]:
    """Prompts one after another, int32: `tokens` (T,), T the bucket of their sum; for each token
    the place of its prompt's `first` one (T,), padding being prompts of one token; and for each
    prompt its `begin` and `length`, (places,). Places without a prompt have the last token alone.
    """
    lengths = [len(prompt) for prompt in prompts]
    total = sum(lengths)
    tokens = np.zeros(max(bucket(total), LEAST_PACKED), np.int32)
    tokens[:total] = np.concatenate(prompts)
    begins = np.cumsum([0, *lengths[:-1]])
    first = np.arange(len(tokens), dtype=np.int32)
    first[:total] = np.repeat(begins, lengths)
    begin = np.full(places, len(tokens) - 1, np.int32)
    length = np.ones(places, np.int32)
    begin[: len(begins)], length[: len(begins)] = begins, lengths
    return {"tokens": tokens, "first": first, "begin": begin, "length": length}


def padded(prompts: Sequence[Sequence[int]], *, padding: Padding) -> tuple[np.ndarray, np.ndarray]:
    """The prompts as (B, T) int32 tokens, T their common bucket, and their lengths (B,).

    Raises:
      ValueError: there is no prompt, or one is empty.
    """
    if not prompts:
        raise InputError("there is no prompt to generate from")
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise InputError(f"prompt {index} is empty; give it at least one token")
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    tokens = np.zeros((len(prompts), bucket(int(lengths.max()))), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        part = slice(len(prompt)) if padding == "right" else slice(-len(prompt), None)
        row[part] = prompt
    return tokens, lengths
