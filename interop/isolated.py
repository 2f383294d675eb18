"""Child processes that import what this process does, but nothing from the current folder.

`python -I` keeps out the current folder, in which a stranger's json.py may lie, and with it the
folders of PYTHONPATH and the user's site-packages, in which the libraries may lie.
"""

import os
import sys


def isolated_command(code: str) -> list[str]:
    """The command of a Python process that runs code; arguments may follow."""
    folders = [entry for entry in sys.path if os.path.isabs(entry) and not _is_here(entry)]
    search = f"[*{folders!r}, *(entry for entry in sys.path if entry not in {folders!r})]"
    return [sys.executable, "-I", "-c", f"import sys\nsys.path[:] = {search}\n{code}"]


def _is_here(entry: str) -> bool:
    try:
        return os.path.samefile(entry, os.curdir)
    except OSError:  # entries need not exist
        return False
