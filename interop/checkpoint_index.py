"""The index of a checkpoint, read by a process of its own before Orbax reads the arrays.

A checkpoint may be a stranger's, and few bytes of its index unpack to any number: a compressed node
of TensorStore's tree, or a chunk that is larger than its array. The process has a bound on its
memory, and imports nothing of jaxsr.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

_MOST_BYTES = 2**30
"""Memory for the index, which has a few hundred bytes for each array."""
_BEGUN = "begun"


def check_index(state: Path, array_bytes: int) -> None:
    """Refuses a folder of arrays that would take more memory than the arrays have.

    Args:
      state: folder that Orbax wrote.
      array_bytes: size of all arrays.

    Raises:
      DamagedFileError: it would, or its index cannot be read.
      CheckpointError: the process did not run.
    """
    from jaxsr.interop.errors import CheckpointError, DamagedFileError

    stored = sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
    if stored > 2 * array_bytes + _MOST_BYTES:
        raise DamagedFileError(f"it has {stored} bytes, for arrays of {array_bytes}")
    reader = subprocess.run(
        [sys.executable, "-P", __file__, state, str(_MOST_BYTES)],
        env={**os.environ, "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    begun, _, reason = reader.stdout.decode(errors="replace").partition("\n")
    if begun != _BEGUN:
        last_line = reader.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CheckpointError(
            f"{state} was not read ({' '.join(last_line)}); run the command again"
        )
    if reason or reader.returncode:
        reason = reason.partition("\n")[0]
        raise DamagedFileError(reason or f"its index unpacks to more than {_MOST_BYTES} bytes")


def _reason(state: str, most_bytes: int) -> str:
    """Why the arrays are not to be read; empty if they are sound."""
    import tensorstore

    used = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    if used:
        limit = used * resource.getpagesize() + most_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    print(_BEGUN, flush=True)
    one = {"limit": 1}
    store = tensorstore.KvStore.open(
        {
            "driver": "ocdbt",
            "base": {"driver": "file", "path": f"{state}/"},
            "context": {"data_copy_concurrency": one, "file_io_concurrency": one},
        }
    ).result()
    for key in store.list().result():
        name, _, kind = key.decode(errors="replace").rpartition("/")
        if kind == "zarr.json":
            return f"{name} has another form than Orbax gives it"
        if kind == ".zarray":
            array = json.loads(store.read(key).result().value)
            pairs = zip(array["chunks"], array["shape"], strict=True)
            compressor = (array["compressor"] or {"id": "zstd"})["id"]
            if compressor != "zstd" or any(chunk > max(side, 1) for chunk, side in pairs):
                return f"chunks of {name} are larger than it, or packed by {compressor}"
    return ""


if __name__ == "__main__":
    try:
        print(_reason(sys.argv[1], int(sys.argv[2])), end="")
    except Exception as error:
        print(f"{type(error).__name__}: {error}", end="")
