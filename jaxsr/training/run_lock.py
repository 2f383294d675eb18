"""Keeps two runs from writing to one folder, on one machine or on several that share a disk.

The holder has a POSIX record lock on `run.lock`. The kernel, or the NFS server, frees the lock when
the holder's process ends, however it ends. Forked children do not inherit it. The file names the
holder.

Some network file systems limit such locks to one host, or have none. So the holder also rewrites
the file every few seconds. A new run that finds another host's name there waits to see whether the
file changes.
"""

import errno
import fcntl
import json
import logging
import os
import platform
import stat
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxsr.errors import FileAccessError, InputError
from jaxsr.interop.annotations import JsonObject

LOCK = "run.lock"
"""Name of the lock file in the run's folder; it stays, empty, when the run has ended."""
BEAT_S = 5.0
"""Seconds between two entries of the holder."""
_BEATS_AWAITED = 2.5
_RECORD_BYTES = 512
_LOCKED = (errno.EACCES, errno.EAGAIN)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_own_locks: set[tuple[int, int]] = set()
"""Device and inode of this process's own locks: the kernel would not refuse them a second time."""

log = logging.getLogger(__name__)


@contextmanager
def lock_folder(out: Path) -> Generator[None]:
    """Locks a run's folder, which exists, while the block runs.

    Raises:
      InputError: another run holds the lock; the message names its process and host.
      FileAccessError: the lock cannot be written.
    """
    path = out / LOCK
    # Closing a second descriptor would free this process's own lock, so this check comes first.
    if path.is_file() and not path.is_symlink() and _identity(path.stat()) in _own_locks:
        raise _in_use(out, _parsed(path.read_bytes()))
    try:
        descriptor = _take(out)
    except OSError as error:
        if isinstance(error, FileAccessError):
            raise
        raise FileAccessError(f"cannot lock {path}: {error.strerror or error}") from error
    identity = _identity(os.fstat(descriptor))
    _own_locks.add(identity)
    stopped = threading.Event()
    thread = threading.Thread(target=_beat, args=(descriptor, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        _own_locks.discard(identity)
        with suppress(OSError):  # the folder may be gone
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


def is_replaced(out: Path) -> bool:
    """Whether the folder's lock is not one of this process: another folder took its place."""
    path = out / LOCK
    return path.is_file() and _identity(path.stat()) not in _own_locks


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _take(out: Path) -> int:
    """Returns the descriptor of the lock file, with the lock and this run's entry."""
    descriptor, has_lock = _open(out)
    content = os.pread(descriptor, _RECORD_BYTES, 0).strip(b"\0 ")
    if content and not content.startswith(b'{"process": '):
        os.close(descriptor)
        raise FileAccessError(f"{out / LOCK} is a file that jaxsr did not write; move it")
    before = _entry(descriptor)
    # A dead holder on this host has lost its lock; on another host, only a pause proves it dead.
    if before and (not has_lock or before["host"] != platform.node()):
        os.close(descriptor)
        log.warning(
            "%s was in use by process %s on %s; waiting to see whether it still is",
            out, before["process"], before["host"],
        )  # fmt: skip
        time.sleep(BEAT_S * _BEATS_AWAITED)
        descriptor, _ = _open(out)  # opened again: NFS clients ask the server when they open a file
        if (now := _entry(descriptor)) != before:
            os.close(descriptor)
            raise _in_use(out, now)
    _write_entry(descriptor, 0)
    return descriptor


def _open(out: Path) -> tuple[int, bool]:
    """Returns the lock file's descriptor, and whether the file system has locks."""
    # Does not follow a link, whose target would be overwritten, nor wait for a FIFO.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(out / LOCK, flags, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FileAccessError(f"{out / LOCK} is a link; remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileAccessError(f"{out / LOCK} is not a regular file; remove it")
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            log.warning("%s has no file locks; relying on the entries in %s", out, LOCK)
            return descriptor, False
        holder = _entry(descriptor)
        os.close(descriptor)
        if error.errno in _LOCKED:
            raise _in_use(out, holder) from None
        raise
    return descriptor, True


def _in_use(out: Path, holder: JsonObject) -> InputError:
    who = f"process {holder['process']} on {holder['host']}" if holder else "another process"
    return InputError(
        f"{out} is in use by another run, {who}; wait for it to end, stop it, or choose another "
        "--out"
    )


def _beat(descriptor: int, stopped: threading.Event) -> None:
    count = 0
    while not stopped.wait(BEAT_S):
        count += 1
        with suppress(OSError):  # a full disk or a removed folder: saving will report it
            _write_entry(descriptor, count)


def _write_entry(descriptor: int, count: int) -> None:
    entry = {"process": os.getpid(), "host": platform.node(), "beat": count}
    os.pwrite(descriptor, json.dumps(entry).encode().ljust(_RECORD_BYTES), 0)


def _entry(descriptor: int) -> JsonObject:
    return _parsed(os.pread(descriptor, _RECORD_BYTES, 0))


def _parsed(content: bytes) -> JsonObject:
    try:
        entry = json.loads(content)
        return {"process": int(entry["process"]), "host": str(entry["host"]), **entry}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
