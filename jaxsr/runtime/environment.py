"""Checks of the process's environment, which would otherwise end a command without a message."""

import os
import sys

from jaxsr.errors import InputError, printable
from jaxsr.runtime.xla_flags import unknown_flags


def check_environment() -> None:
    """Refuses an environment in which libraries end the process, or fail later.

    Raises:
      InputError: the current folder is gone, file names are not encoded in UTF-8, `XLA_FLAGS` has a
        flag unknown to XLA, `JAX_DISABLE_JIT` is set, or JAX promotes dtypes by other rules.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise InputError(
            f"the current folder cannot be read ({error.strerror}); change to another one"
        ) from error
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") != "utf8":
        raise InputError(
            f"file names are encoded in {encoding} here, which lacks most characters; set "
            "LC_ALL=C.UTF-8 or PYTHONUTF8=1"
        )
    if unknown := unknown_flags(os.environ.get("XLA_FLAGS", "")):
        raise InputError(
            f"XLA_FLAGS has {printable(unknown[0], 100)}, which this jaxlib does not know, and "
            "which would abort the process; remove it"
        )
    if os.environ.get("JAX_DISABLE_JIT", "0").lower() not in ("", "0", "false", "no", "n", "off"):
        raise InputError(
            "JAX_DISABLE_JIT is set, but networks run as compiled programs only; unset it"
        )
    promotion = os.environ.get("JAX_NUMPY_DTYPE_PROMOTION", "standard")
    if promotion != "standard":
        raise InputError(
            f"JAX_NUMPY_DTYPE_PROMOTION is {printable(promotion, 60)}, under which networks of "
            "mixed dtypes fail; unset it"
        )
