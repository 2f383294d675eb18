"""Prompts of different lengths as one matrix: buckets of lengths, padding, cache sizes.

Lengths are rounded up to buckets so that few programs are compiled; what the padding holds is
never looked at.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxsr.errors import InputError

Padding = Literal["right", "left"]

SMALLEST_BUCKET = 16


def bucket(length: int) -> int:
    """The size at or above `length`: a power of two from 16 on, or above 128 three halves of one.

    Of long prompts padding costs more than a program does.
    """
    power = max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())
    less = power // 4 * 3
    return less if length <= less and less > 128 else power


def cache_slots(prompt_length: int, max_new_tokens: int, *, context: int) -> int:
    """Slots that a prompt of this length and its output need, rounded up.

    Multiples of 128 up to 1024 and buckets above: attention reads the whole cache at
    every step, so a coarse rounding would cost time. Rounding does not pass the `context`, for
    some networks have tables of its size.
    """
    need = bucket(prompt_length) + max_new_tokens
    rounded = -(-need // 128) * 128 if need <= 1024 else bucket(need)
    return max(need, min(rounded, context))


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
