"""Digests of the user's code, by which results, runs and programs of other code are told apart."""

import sys
from pathlib import Path

from jaxsr.interop.python_code import is_users_file
from jaxsr.interop.sealed_json import short_digest
from jaxsr.models.described_values import Describer


def code_digests(task: object = None) -> dict[str, str]:
    """Returns digests of the user's code by name: imported modules, and what a notebook defines.

    Args:
      task: class or function that is trained. If a notebook's cell defines it, its code counts, and
        the cells' functions, classes and values that it names.
    """
    digests = {}
    of_main = getattr(task, "__module__", None) == "__main__"
    if of_main and not hasattr(sys.modules["__main__"], "__file__"):
        text = "\n".join(Describer(unknown="alike").code([task]))
        digests["__main__"] = short_digest(text.encode("utf-8", "backslashreplace"))
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and is_users_file(file) and Path(file).is_file():
            digests[name] = short_digest(Path(file).read_bytes())
    return digests
