"""Sealed texts: plain JSON for every reader, and any change is noticed."""

import json
import random

import pytest

from jaxsr.interop.errors import DamagedFileError
from jaxsr.interop.sealed_json import seal, short_digest, unseal

CONTENT = {"family": "span", "options": {"lr": 1e-3, "name": 'é"\\'}, "steps": [1, 2, None]}


@pytest.mark.parametrize("indent", [None, 2])
def test_comes_back_and_is_plain_json(indent):
    text = seal(CONTENT, indent=indent)
    assert unseal(text.encode() + b"\n", source="x") == CONTENT
    plain = json.loads(text)
    assert {name: value for name, value in plain.items() if name != "digest"} == CONTENT


def test_any_flipped_bit_cut_or_addition_is_damage():
    sealed = seal(CONTENT).encode()
    rng = random.Random(0)
    for _ in range(300):
        damaged = bytearray(sealed)
        damaged[rng.randrange(len(sealed))] ^= 1 << rng.randrange(8)
        with pytest.raises(DamagedFileError, match=r"^x is damaged: .* digest in it"):
            unseal(bytes(damaged), source="x")
    for length in range(len(sealed)):
        with pytest.raises(DamagedFileError):
            unseal(sealed[:length], source="x")
    for other in (b"", b"{}", b"[]", b"\xff\xfe", sealed + b"}", json.dumps(CONTENT).encode()):
        with pytest.raises(DamagedFileError):
            unseal(other, source="x")


def test_lists_in_lists_without_end_are_one_error():
    body = '"a": ' + "[" * 200_000
    text = f'{{"digest": "{short_digest(f" {body}".encode())}", {body}'
    with pytest.raises(DamagedFileError, match="is damaged"):
        unseal(text.encode(), source="trace.json")
