"""Files that no writer made, sparse ones of gigabytes for example, are not read."""

import pytest

from jaxsr.interop.bounded_read import MOST_BYTES, read_bounded
from jaxsr.interop.errors import InputError


def test_a_small_file_is_read_and_a_large_one_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"{}")
    assert read_bounded(path) == b"{}"
    assert read_bounded(path, most_bytes=2) == b"{}"
    with pytest.raises(InputError, match=r"config\.json has more than 1 bytes"):
        read_bounded(path, most_bytes=1)
    with path.open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match=f"has more than {MOST_BYTES:,} bytes"):
        read_bounded(path)
