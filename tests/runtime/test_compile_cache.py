"""Compiled programs come back from the cache; damaged ones are compiled again."""

import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import cache_key, compilation_cache, compiler

from jaxsr.runtime import compile_cache
from jaxsr.runtime.compile_cache import SealedCache, use_sealed_cache
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
    contents = {path: path.read_bytes() for path in files}
    np.testing.assert_array_equal(compute(), expected)
    assert not caplog.messages
    for damage in (lambda c: c[:-9], lambda c: b"", lambda c: c[:50] + b"\0\1" + c[52:]):
        for path, content in contents.items():
            path.write_bytes(damage(content))
        caplog.clear()
        np.testing.assert_array_equal(compute(), expected)
        assert "is damaged; the program is compiled again" in caplog.text
        caplog.clear()
        np.testing.assert_array_equal(compute(), expected)  # from the entries that replaced them
        assert not caplog.messages
        contents = {path: path.read_bytes() for path in files}


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


@pytest.fixture
def jaxs_own(monkeypatch):
    """The key is JAX's until a test changes it."""
    replacements = {
        "_hash_platform": compile_cache._jax_hash_platform,
        "_hash_accelerator_config": compile_cache._jax_hash_accelerators,
        "_hash_serialized_compile_options": compile_cache._jax_hash_options,
    }
    for name, function in replacements.items():
        monkeypatch.setattr(cache_key, name, function)
    monkeypatch.setattr(compilation_cache, "get_file_cache", compilation_cache.get_file_cache)


def key_of(devices, backend, *, folder=""):
    options = compiler.get_compile_options(num_replicas=1, num_partitions=len(devices))
    debug_options = options.executable_build_options.debug_options
    debug_options.xla_gpu_per_fusion_autotune_cache_dir = folder
    program = jax.jit(jnp.sin).lower(jnp.ones(3)).compiler_ir()
    assert program is not None
    return cache_key.get(program, np.array(devices), options, backend)


def gpu_key(kinds, version, **options):
    devices = [SimpleNamespace(platform="gpu", device_kind=kind) for kind in kinds]
    return key_of(devices, SimpleNamespace(platform="gpu", platform_version=version), **options)


def test_a_gpus_key_has_its_kind_alone(jaxs_own):
    use_sealed_cache()
    h100, h200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
    key = gpu_key([h100], "PJRT C API\ncuda 13000", folder="/host/cache/xla")
    assert key == gpu_key([h100], f"PJRT C API\n{h100}", folder="/elsewhere/xla")
    others = [gpu_key([h200], "cuda 13000"), gpu_key([h100, h100], "cuda 13000")]
    assert len({key, *others}) == 3


def test_keys_of_cpus_and_tpus_are_jaxs(jaxs_own):
    devices = jax.devices()[:2]
    tpu = SimpleNamespace(platform="tpu", platform_version="built on some day")
    backends = devices[0].client, tpu, SimpleNamespace(platform="tpu", platform_version="another")
    # The devices are those of CPUs each time, for JAX must know them.
    by_jax = [key_of(devices, backend) for backend in backends]
    use_sealed_cache()
    assert [key_of(devices, backend) for backend in backends] == by_jax
    assert len(set(by_jax)) == 3
