"""Places of errors in files of the user's: neither jaxsr's, Python's nor of a library."""

import sysconfig
import traceback
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = tuple(
    f"{folder}/"
    for folder in {
        _PACKAGE,
        *(path.resolve() for path in (_PACKAGE / "interop", _PACKAGE / "ops")),  # may be links
        *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
    }
)


def place_of(error: BaseException) -> str:
    """File and line where an error was raised: the last in a user's file, `my_nets.py:12`.

    Where it passed through none, the line that called torch says more than the one in torch.
    """
    frames = traceback.extract_tb(error.__traceback__)
    candidates = (
        [f for f in frames if is_users_file(f.filename)]
        or [f for f in frames if "/torch/" not in f.filename and not f.filename.startswith("<")]
        or frames
    )
    return f"{Path(candidates[-1].filename).name}:{candidates[-1].lineno}"


def is_users_file(file: str) -> bool:
    """Whether a traceback's file is neither jaxsr's, Python's nor of an installed library."""
    return not file.startswith((*_LIBRARIES, "<"))
