"""Keeps CPU programs out of XLA's YNN fusion, which can end the process or compute wrongly.

jaxlib 0.10.2 and later pass sums, products and windows on CPUs to YNNPACK. In 0.10.2 and 0.11.0
reductions of rank 7 crash (jax-ml/jax#39257, #40412) and sums after a product lose values (#39103).
0.11.2 computes those rightly, but still drops the dilation of a window reduction
(openxla/xla#48714) and aborts on reducers of its own kind (openxla/xla#47374). The fusion is
therefore off for every jaxlib that has it; `jaxsr.doctor.sentinels` shows when one is sound.

`import jaxsr` calls `disable_ynn_fusion`. This module uses JAX only if it is loaded already.
"""

import functools
import importlib.util
import mmap
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

YNN_FUSION = "xla_cpu_experimental_ynn_fusion_type"
"""The option that lists the operations that XLA fuses this way: a flag and a compiler option. Empty
is off."""

_OFF = f"--{YNN_FUSION}="
_RISK = "CPU programs can crash or compute wrong values (jax-ml/jax#39103, #39257)"


def disable_ynn_fusion() -> None:
    """Turns the fusion off for later compilations, here and in child processes.

    `XLA_FLAGS` gets the flag, if this jaxlib knows it: XLA ends the process at an unknown one. A
    setting of the user stays, with a warning if the fusion is on. XLA reads the variable once, when
    the first backend starts. If one runs already with the fusion on, a warning names the risk, and
    JAX's compile options are changed for every later program.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    setting = ynn_setting(flags)
    if setting is None:
        if not _jaxlib_knows(YNN_FUSION):
            return
        os.environ["XLA_FLAGS"] = f"{_flag_text(flags)} {_OFF}".strip()
    elif setting:
        _warn(
            f"XLA_FLAGS has --{YNN_FUSION}={setting}: with this fusion {_RISK}; remove it, or "
            f"leave its value empty"
        )
        return
    if backend_is_running() and _programs_are_fused():
        _override_compile_options()
        later = "are at risk too" if _programs_are_fused() else "are safe"
        _warn(
            f"JAX started before jaxsr was imported, with XLA's YNN fusion on: {_RISK}. Those "
            f"compiled so far are at risk until jax.clear_caches(), later ones {later}; put "
            f"`import jaxsr` before the first use of JAX"
        )


def ynn_setting(flags: str) -> str | None:
    """Returns the setting of the fusion in a value of `XLA_FLAGS`, or None if it has none.

    Args:
      flags: the value: flags, or the name of a file of flags.
    """
    values = re.findall(rf"--{YNN_FUSION}=(\S*)", _flag_text(flags))
    return values[-1].strip("'\"") if values else None


def without_ynn_flag(flags: str) -> str:
    """Returns a value of `XLA_FLAGS` without the addition of `disable_ynn_fusion`."""
    return " ".join(flag for flag in flags.split() if flag != _OFF)


def unknown_flags(flags: str) -> list[str]:
    """Returns the flags in a value of `XLA_FLAGS` at which XLA would end the process."""
    words = [word for word in _flag_text(flags).split() if word.startswith("--xla")]
    return [word for word in words if not _jaxlib_knows(word[2:].partition("=")[0])]


def flags_error(flags: str) -> str | None:
    """Returns why XLA would end the process for a value of `XLA_FLAGS`, often without a word.

    XLA itself is asked, in a process of its own: 0.4 s, and nothing where jaxsr alone set flags.
    """
    set_here = re.compile(rf"{_OFF}|--xla_force_host_platform_device_count=\d{{1,4}}")
    if all(set_here.fullmatch(word) for word in _flag_text(flags).split()):
        return None
    asked = subprocess.run(
        # Not from the current folder, in which a stranger's jaxlib.py may lie.
        [sys.executable, "-P", "-c", "from jaxlib import xla_client; xla_client.CompileOptions()"],
        env={**os.environ, "XLA_FLAGS": flags},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    said = re.search(
        r"(Unknown flags? in XLA_FLAGS: |Couldn't interpret value ).*",
        asked.stderr.decode(errors="replace"),
    )
    return said[0] if asked.returncode and said else None


def _flag_text(flags: str) -> str:
    """Returns the flags themselves: XLA takes a value without a leading `-` for a file's name."""
    if not flags.strip() or flags.lstrip().startswith("-"):
        return flags.strip()
    try:
        return " ".join(Path(flags).read_text().split())
    except OSError:
        return ""  # XLA ignores a file that it cannot read


@functools.cache
def _jaxlib_knows(flag: str) -> bool:
    """Whether the name of a flag is in jaxlib's shared library.

    Loading the library would also tell, but takes longer, and XLA would then read `XLA_FLAGS`.
    """
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or spec.origin is None:
        return False
    folder = Path(spec.origin).parent
    libraries = [p for suffix in ("so", "dylib", "pyd", "dll") for p in folder.glob(f"*.{suffix}")]
    for path in sorted(libraries, key=lambda path: -path.stat().st_size)[:1]:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(flag.encode()) >= 0
    return False


def backend_is_running() -> bool:
    """Whether JAX has started, and XLA has read its flags."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


def _programs_are_fused() -> bool:
    """Whether XLA, as it runs in this process, fuses a program that it can fuse."""
    import jax
    from jax.sharding import SingleDeviceSharding

    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return False  # no backend for CPUs
    on_cpu = SingleDeviceSharding(device)
    operand = jax.ShapeDtypeStruct((64, 128), "float32", sharding=on_cpu)
    program = jax.jit(lambda x: (x * x).sum(1)).lower(operand).compile()
    return '"__ynn_fusion"' in (program.as_text() or "")


def _override_compile_options() -> None:
    """Adds the option to JAX's own compile options for CPUs, unless the caller gives it.

    JAX has no public default for compiler options; every compilation calls this function for them.
    """
    from jax._src import compiler

    original = getattr(compiler, "get_compile_options", None)
    if original is None:
        return

    @functools.wraps(original)
    def get_compile_options(*args: Any, **kwargs: Any) -> Any:
        options = original(*args, **kwargs)
        overrides = dict(options.env_option_overrides)
        if getattr(kwargs.get("backend"), "platform", None) == "cpu":
            options.env_option_overrides = list(({YNN_FUSION: ""} | overrides).items())
        return options

    compiler.get_compile_options = get_compile_options


def _warn(message: str) -> None:
    # The line that imports jaxsr: it is above this function, its caller and `jaxsr/__init__.py`.
    warnings.warn(message, RuntimeWarning, stacklevel=4)
