"""Checks of the process's environment, which would otherwise end a command without a message."""

import linecache
import os
import re
import sys
import traceback

from jaxsr.errors import InputError, first_of, printable
from jaxsr.runtime.xla_flags import flags_error, unknown_flags


def check_environment() -> None:
    """Refuses an environment in which libraries end the process, or fail later.

    Raises:
      InputError: the current folder is gone, file names are not encoded in UTF-8, `XLA_FLAGS` has a
        flag or a value that XLA refuses, `JAX_DISABLE_JIT` is set, `JAXSR_ALLOCATOR` has another
        value, JAX promotes dtypes by other rules, or OpenCV aborts for one of its limits.
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
    if reason := flags_error(os.environ.get("XLA_FLAGS", "")):
        raise InputError(f"XLA ends the process: {printable(reason, 200)}; correct XLA_FLAGS")
    if os.environ.get("JAX_DISABLE_JIT", "0").lower() not in ("", "0", "false", "no", "n", "off"):
        raise InputError(
            "JAX_DISABLE_JIT is set, but networks run as compiled programs only; unset it"
        )
    if (allocator := os.environ.get("JAXSR_ALLOCATOR", "")) not in ("", "system"):
        raise InputError(
            f"JAXSR_ALLOCATOR is {printable(allocator, 60)}; system is its only value, and without "
            "it freed memory is kept"
        )
    for name in ("PIXELS", "WIDTH", "HEIGHT"):
        limit = os.environ.get(f"OPENCV_IO_MAX_IMAGE_{name}", "0")
        if not re.fullmatch(r"\d+(MB|Mb|mb|KB|Kb|kb)?", limit, re.ASCII):
            raise InputError(
                f"OPENCV_IO_MAX_IMAGE_{name} is {printable(limit, 60)!r}, for which OpenCV aborts "
                "the process; give a whole number, or unset it"
            )
    promotion = os.environ.get("JAX_NUMPY_DTYPE_PROMOTION", "standard")
    if promotion != "standard":
        raise InputError(
            f"JAX_NUMPY_DTYPE_PROMOTION is {printable(promotion, 60)}, under which networks of "
            "mixed dtypes fail; unset it"
        )


_LIBRARIES = (
    *("SOURCE_DATE_EPOCH", "JAX_", "XLA_", "TORCH", "PYTORCH_", "TPU_", "LIBTPU_", "TF_", "TQDM_"),
    *("HF_", "OPENCV_"),
)
"""Names, or prefixes of names, of the environment variables that libraries read."""


def variable_error(error: BaseException) -> InputError | None:
    """The line about an environment variable for whose value a library raised this, if it did.

    The error names the variable, or contains its value and ended an import of a library.
    """
    text, frames = str(error), traceback.extract_tb(error.__traceback__)
    importing = any(f.name == "<module>" and "site-packages" in f.filename for f in frames)
    # Several variables may have that value: the statements that failed name the one.
    source = "".join(
        linecache.getline(frame.filename, line)
        for frame in frames
        for line in range(frame.lineno or 0, (frame.end_lineno or frame.lineno or 0) + 1)
    )
    suspects = []
    for name, value in os.environ.items():
        shown = re.escape(value) or "''|\"\""
        if not name.startswith(_LIBRARIES):
            continue
        if re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE):
            suspects.append((2, name))
        elif importing and re.search(rf"(?<!\w)({shown})(?!\w)", text):
            quoted = re.search(rf"[\"']{re.escape(name)}[\"']", source, re.IGNORECASE)
            suspects.append((int(quoted is not None), name))
    if not suspects:
        return None
    rank, name = max(suspects)
    others = [other for each, other in suspects if each == rank and other != name]
    alternatives = f" (or {first_of(others)})" if others else ""
    value = printable(os.environ[name], 60)
    return InputError(
        f"{name}{alternatives} is {value!r}, which a library refuses "
        f"({printable(text or type(error).__name__, 200)}); correct or unset it"
    )
