"""Compiled programs come back from the cache; damaged ones are compiled again."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache

from jaxsr.runtime.compile_cache import SealedCache
from jaxsr.runtime.setup import configure_jax


@pytest.fixture
def folder(tmp_path):
    """JAX's settings come back at the end."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    open_cache = compilation_cache.get_file_cache
    compilation_cache.reset_cache()
    configure_jax(tmp_path / "cache", least_compile_s=0)
    yield tmp_path / "cache"
    compilation_cache.get_file_cache = open_cache
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def compute() -> np.ndarray:
    jax.clear_caches()
    return np.asarray(jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.arange(12.0).reshape(3, 4)))


def test_a_damaged_program_is_compiled_again(folder, caplog):
    expected = compute()
    files = sorted(folder.glob("*-cache"))
    assert files and all(path.name.endswith("-sealed-cache") for path in files)
    whole = {path: path.read_bytes() for path in files}
    np.testing.assert_array_equal(compute(), expected)
    assert not caplog.messages
    for damage in (lambda c: c[:-9], lambda c: b"", lambda c: c[:50] + b"\0\1" + c[52:]):
        for path, content in whole.items():
            path.write_bytes(damage(content))
        caplog.clear()
        np.testing.assert_array_equal(compute(), expected)
        assert "is damaged; the program is compiled again" in caplog.text
        caplog.clear()
        np.testing.assert_array_equal(compute(), expected)  # from the entries that replaced them
        assert not caplog.messages
        whole = {path: path.read_bytes() for path in files}


def test_a_bounded_cache_and_entries_of_jax_itself(tmp_path):
    cache = SealedCache(str(tmp_path), max_size=10_000)
    cache.put("a", b"value")
    cache.put("a", b"other")  # the first stays, as in JAX
    assert cache.get("a") == b"value"
    assert cache.get("b") is None
    (tmp_path / "b-cache").write_bytes(b"what JAX wrote without a digest")
    assert cache.get("b") is None


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    before = jax.config.values["jax_compilation_cache_dir"]
    configure_jax(tmp_path / "file" / "cache")
    assert caplog.messages == [
        f"compiled programs are not kept: {tmp_path}/file/cache: Not a directory"
    ]
    assert jax.config.values["jax_compilation_cache_dir"] == before


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, caplog):
    cache = SealedCache(str(tmp_path / "cache"), max_size=-1)
    shutil.rmtree(tmp_path / "cache")
    for name in ("a", "b"):
        cache.put(name, b"value")
    assert caplog.messages == [
        f"compiled programs are not kept in {tmp_path}/cache: No such file or directory"
    ]
