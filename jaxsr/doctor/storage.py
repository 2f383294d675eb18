"""Where jaxsr writes: the compile cache, and room for runs."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxsr.doctor.checks import Finding
from jaxsr.folders import cache_folder

_LITTLE_GIB = 2.0


def check_storage() -> Iterator[Finding]:
    """The compile cache is writable and works; disks have room."""
    yield _cache(cache_folder() / "compiled")
    here = Path.cwd()
    for name, path in (("disk here", here), ("temporary folder", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(path).free / 2**30
        detail = f"{path}: {free:.1f} GiB free"
        if free < _LITTLE_GIB:
            yield Finding(name, "note", detail, "checkpoints need room: name another --out")
        else:
            yield Finding(name, "ok", detail)
    if not os.access(here, os.W_OK):
        advice = "name another folder with --out"
        yield Finding("run folders", "note", f"{here} is not writable", advice)


def _cache(folder: Path) -> Finding:
    advice = (
        "every start compiles anew; set XDG_CACHE_HOME to a writable folder, or give "
        "--compile-cache"
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        detail = f"{folder}: {error.strerror or error}"
        return Finding("compile cache", "fail", detail, advice)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    detail = f"{folder}: {len(sizes)} files, {sum(sizes) / 2**20:.0f} MiB"
    return Finding("compile cache", "ok", detail)
