"""JAX's cache of compiled programs, with a digest in every entry.

JAX trusts its files: it would run a damaged entry as machine code. This cache removes an entry that
does not match its digest, warns with its name, and the program is compiled again.
"""

import copy
import functools
import hashlib
import logging
from pathlib import Path
from typing import Any

from jax._src import cache_key, compilation_cache
from jax._src.lru_cache import LRUCache

from jaxsr.interop.atomic_write import atomic_write

_jax_hash_platform = cache_key._hash_platform
_jax_hash_accelerators = cache_key._hash_accelerator_config
_jax_hash_options = cache_key._hash_serialized_compile_options
_DIGEST_BYTES = 32
_SUFFIX = "-sealed"

log = logging.getLogger(__name__)

written_entries: list[Path] = []
"""Files that this process has written, the newest last."""


class SealedCache(LRUCache):
    """Entries with their own file suffix; entries that JAX itself wrote are not read."""

    def get(self, key: str) -> bytes | None:
        """Returns the entry, or None if it is missing or damaged; removes a damaged one."""
        content = super().get(key + _SUFFIX)
        if content is None:
            return None
        value = content[_DIGEST_BYTES:]
        if hashlib.sha256(value).digest() == content[:_DIGEST_BYTES]:
            return value
        path = self._file(key)
        log.warning("%s is damaged; the program is compiled again", path)
        path.unlink(missing_ok=True)
        return None

    def put(self, key: str, value: bytes) -> None:
        """Writes the entry, which appears complete or not at all."""
        path = self._file(key)
        if path.exists():
            return
        digest = hashlib.sha256(value).digest()
        try:
            if self.eviction_enabled:
                super().put(key + _SUFFIX, digest + value)
            else:
                atomic_write(path, digest, value)
            written_entries.append(path)
        except OSError as error:
            _warn_once(f"compiled programs are not kept in {self._path}: {error.strerror or error}")

    def _file(self, key: str) -> Path:
        return Path(str(self._path)) / f"{key}{_SUFFIX}-cache"


def use_sealed_cache() -> None:
    """Makes JAX keep its compiled programs in a `SealedCache`; called before any is compiled.

    A GPU program has the same key whether it is compiled on the GPU or without it. JAX's own key
    includes the driver and the host's processor, which are unknown without the device. Nor do keys
    depend on the folder's path, as they do in JAX 0.10.
    """
    compilation_cache.get_file_cache = _open_cache
    cache_key._hash_platform = _hash_platform
    cache_key._hash_accelerator_config = _hash_accelerators
    cache_key._hash_serialized_compile_options = _hash_options


def _hash_platform(digest: Any, backend: Any) -> None:
    if backend.platform != "gpu":
        _jax_hash_platform(digest, backend)


def _hash_accelerators(digest: Any, devices: Any) -> None:
    if devices.flat[0].platform != "gpu":
        _jax_hash_accelerators(digest, devices)
        return
    for device in devices.flat:
        digest.update(f"{device.device_kind};".encode())


def _hash_options(digest: Any, options: Any, **how: Any) -> None:
    options = copy.deepcopy(options)
    # JAX puts the path into its cache's folder.
    options.executable_build_options.debug_options.xla_gpu_per_fusion_autotune_cache_dir = ""
    _jax_hash_options(digest, options, **how)


@functools.cache
def _warn_once(text: str) -> None:
    log.warning(text)


def _open_cache(path: str) -> tuple[SealedCache, str]:
    from jax import config

    return SealedCache(path, max_size=config.values["jax_compilation_cache_max_size"]), path
