"""Files appear complete or not at all, whichever way they are written."""

import os

import pytest

from jaxsr.interop.atomic_write import AtomicFile, atomic_path, atomic_write, check_file


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_bytes_replace_the_file_before(tmp_path):
    atomic_write(tmp_path / "a.json", b"old")
    atomic_write(tmp_path / "a.json", b"new")
    assert (tmp_path / "a.json").read_bytes() == b"new" and names(tmp_path) == ["a.json"]


def test_a_write_that_fails_leaves_the_file_before(tmp_path, monkeypatch):
    atomic_write(tmp_path / "a.json", b"old")

    def full(descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(tmp_path / "a.json", b"new")
    assert (tmp_path / "a.json").read_bytes() == b"old" and names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("write", [check_file, lambda path: atomic_write(path, b"x")])
@pytest.mark.parametrize(
    ("name", "reason"), [("folder", "Is a directory"), ("absent/a", "No such file or directory")]
)
def test_errors_name_the_file_that_was_to_be_written(tmp_path, write, name, reason):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=reason) as error:
        write(tmp_path / name)
    assert error.value.filename == str(tmp_path / name) and error.value.filename2 is None
    assert names(tmp_path) == ["folder"]
    check_file(tmp_path / "a")
    assert names(tmp_path) == ["folder"]


def test_a_stream_has_no_name_before_it_is_finished(tmp_path):
    file = AtomicFile(tmp_path / "a.png")
    file.stream.write(b"x")
    assert names(tmp_path) != ["a.png"]
    file.finish()
    assert names(tmp_path) == ["a.png"]
    other = AtomicFile(tmp_path / "b.png")
    other.abandon()
    assert names(tmp_path) == ["a.png"]


def test_a_path_keeps_the_ending_and_goes_with_an_error(tmp_path):
    with atomic_path(tmp_path / "a.mp4") as partial:
        assert partial.suffix == ".mp4"
        partial.write_bytes(b"x")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "b.mp4") as partial:
        partial.write_bytes(b"x")
        raise RuntimeError
    assert names(tmp_path) == ["a.mp4"]
