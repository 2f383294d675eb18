"""The only file that touches torchax: its table of aten lowerings, without its global state.

jaxsr takes those of its lowerings that neither jaxsr nor torch has (`OPERATORS`). Its tensor type,
modes and environment are not used: they lose in-place writes through views, ignore `no_grad` and
draw random numbers from a baked-in key. `dispatch.py` runs the lowerings instead and
checks every result against torch.
"""

import functools
import importlib.metadata
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from jaxsr.interop.errors import InputError

HOW_TO_INSTALL = "pip install 'torchax==0.0.14.dev20261026', the one that jaxsr is tested with"

_LOCK = threading.Lock()

_NAMES = """
special_bessel_j0.default special_bessel_j1.default
special_bessel_y0.default special_bessel_y1.default
special_hermite_polynomial_h.default special_hermite_polynomial_h.n_scalar
special_hermite_polynomial_h.x_scalar special_hermite_polynomial_he.default
special_hermite_polynomial_he.n_scalar special_hermite_polynomial_he.x_scalar
special_laguerre_polynomial_l.default special_laguerre_polynomial_l.n_scalar
special_laguerre_polynomial_l.x_scalar special_modified_bessel_i0.default
special_modified_bessel_i1.default special_modified_bessel_k0.default
special_modified_bessel_k1.default
"""
OPERATORS = frozenset(f"aten.{name}" for name in _NAMES.split())
"""The operators that jaxsr takes from torchax, as torch writes them, such as
`aten.add.Tensor`: all whose lowering is torchax's. A release of torch may lack some.

No program of benchmarks/conformance runs one, nor does a model of the zoo. Eleven have an entry in
torch's database of operators, one each: all but those of scalars (counted on 2026-11-29)."""


@functools.cache
def _tables() -> tuple[dict, dict]:
    """torchax's aten lowerings and torch decompositions; imports torchax on first use.

    Importing it switches off torch's fused attention path for the whole process, sets a telemetry
    variable and names a JAX client option: all three are put back. It also gives torch a device
    called `jax` that says it is available, at which `nn.DataParallel` and plain torch checkpoints
    then stumble: it stays, saying that it is not, and has no devices, whose random states
    `torch.random.fork_rng` would ask for.
    """
    import jax

    with _LOCK:
        fast_path = torch.backends.mha.get_fastpath_enabled()
        telemetry = os.environ.get("ENABLE_RUNTIME_UPTIME_TELEMETRY")
        first_import = "torchax" not in sys.modules
        client = getattr(jax.config, "jax_pjrt_client_create_options", None)
        try:
            lowerings = _lowerings()
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            if first_import and hasattr(torch, "jax"):
                torch.jax.is_available = lambda: False
                torch.jax.device_count = lambda: 0
            if telemetry is None:
                os.environ.pop("ENABLE_RUNTIME_UPTIME_TELEMETRY", None)
            if client is not None:
                jax.config.update("jax_pjrt_client_create_options", client)
        from torch._decomp import decomposition_table

        return lowerings, decomposition_table


def _lowerings() -> dict:
    version = importlib.metadata.version("torchax")
    try:
        from torchax.ops import jaten, ops_registry  # noqa: F401

        return {
            op: entry.func
            for op, entry in ops_registry.all_aten_ops.items()
            if entry.is_jax_function and not entry.needs_env
        }
    except Exception as error:
        raise InputError(
            f"torchax {version} has no lowerings that jaxsr can read with torch "
            f"{torch.__version__} ({type(error).__name__}: {error}); {HOW_TO_INSTALL}"
        ) from error


def lacks(func: torch._ops.OpOverload) -> str:
    """Why the installed torchax does not compute an operator that jaxsr takes from it, or ""."""
    if str(func) not in OPERATORS or lowering(func) is not None:
        return ""
    version = importlib.metadata.version("torchax")
    return f"torchax {version} has no lowering of {func}, which jaxsr takes from it"


def lowering(func: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """torchax's JAX function for an aten overload, or None."""
    table, _ = _tables()
    return table.get(func) or table.get(func.overloadpacket)


def decomposition(func: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """torch's own decomposition of an aten overload into simpler ones, or None."""
    return _tables()[1].get(func)


def prepare() -> None:
    """Imports torchax now, outside any trace."""
    _tables()
