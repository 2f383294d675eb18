"""Places of errors in files of the user's: neither jaxsr's, Python's nor of a library."""

import traceback
from pathlib import Path

from jaxsr.interop.python_code import is_users_file


def place_of(error: BaseException) -> str:
    """File and line where an error was raised: the last in a user's file, `my_nets.py:12`.

    Where it passed through none, the line that called torch says more than the one in torch.
    """
    frames = traceback.extract_tb(error.__traceback__)
    candidates = (
        [f for f in frames if is_in_users_file(f)]
        or [f for f in frames if "/torch/" not in f.filename and not f.filename.startswith("<")]
        or frames
    )
    return f"{Path(candidates[-1].filename).name}:{candidates[-1].lineno}"


def is_in_users_file(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is in a file of neither jaxsr, Python nor an installed library."""
    return not frame.filename.startswith("<") and is_users_file(frame.filename)
