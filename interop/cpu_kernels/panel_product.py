"""Products of a few tokens with a matrix in panels, compiled for this processor by LLVM.

XLA's CPU kernels read a float32 matrix well for one token and badly for several, and unpack levels
of four bits element by element. The kernels here read each panel of 64 outputs once, for any number
of tokens, and unpack levels in registers. They need `llvmlite`, which compiles `panel_kernels` in
half a second, or once where a folder keeps the code. Calls do not enter Python. Sums run in float32
in the order of the inputs. With a float32 matrix a token has the same bits whatever is multiplied
with it; for more than two tokens levels are unpacked first, which rounds otherwise.

- `NAMES["float"]`: x (M, I), up to three matrices (P, I, 64), float32.
- `NAMES["attention"]`, `NAMES["attention_few"]`: see `attention`.
- `NAMES[4]`, `NAMES[8]`: levels of so many bits, (P, I · bits / 32, 64) words of 32 bits, each with
  consecutive inputs from its lowest bits on; 8 bits are signed. Tables (P, G, 2, 64) are the scale
  and the zero of each group of inputs: a weight is `level · scale + zero`.
"""

import functools
import hashlib
import importlib.util
import platform
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from jaxsr.interop.atomic_write import read_sealed, write_sealed
from jaxsr.interop.cpu_kernels.attention_kernel import COLUMNS
from jaxsr.interop.cpu_kernels.panel_kernels import kernels
from jaxsr.interop.cpu_kernels.panel_tasks import FEW, NAMES, PANEL
from jaxsr.interop.cpu_kernels.torch_calls import threads_per_call
from jaxsr.xla_calls import calls as cpu_calls

# M tokens, I inputs, O outputs, P panels, G groups


def available() -> bool:
    """Whether the kernels are to be compiled for this processor."""
    return cpu_calls.is_native() and cpu_calls.enabled() and _compiles()


@functools.cache
def _compiles() -> bool:
    if importlib.util.find_spec("llvmlite") is None or _schedule_word() is None:
        return False
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return platform.machine() == "x86_64" and bool(features.get("fma") and features.get("avx2"))


def register(folder: Path | None = None) -> None:
    """Compiles the kernels for the programs of this process.

    Args:
      folder: where their machine code is kept for later processes. None: not stored.
    """
    threads = threads_per_call()
    if threads not in _engines:  # which own the code
        _engines[threads] = engine = _compiled(threads, folder)
        for name in NAMES.values():
            cpu_calls.register_function(name, engine.get_function_address(name))


_engines: dict[int, Any] = {}


def _compiled(threads: int, folder: Path | None) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    target = {"cpu": llvm.get_host_cpu_name(), "features": features.flatten(), "opt": 3}
    machine = llvm.Target.from_default_triple().create_target_machine(**target)
    word = _schedule_word()
    assert word is not None, "not available"
    text = kernels(wide=bool(features.get("avx512f")), threads=threads, schedule_word=word)
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_process_triple()
    key = repr((text, module.triple, sorted(target.items()), llvm.llvm_version_info))
    name = f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:32]}.o"
    stored = None if folder is None else read_sealed(folder / name)
    if stored is None:
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
        builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    if folder is not None:
        engine.set_object_cache(
            lambda _, code: write_sealed(folder / name, bytes(code)), lambda _: stored
        )
    engine.finalize_object()
    return engine


@functools.cache
def _schedule_word() -> int | None:
    """Where XLA's table of functions has the one that gives a task to its threads."""
    import jaxlib

    header = Path(jaxlib.__file__).parent / "include/xla/ffi/api/c_api.h"
    if not header.is_file():
        return None
    names = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((XLA_FFI_\w+)\);", header.read_text())
    if "XLA_FFI_ThreadPool_Schedule" not in names or names[0] != "XLA_FFI_Error_Create":
        return None
    return cpu_calls.FIRST_FUNCTION_WORD + names.index("XLA_FFI_ThreadPool_Schedule")


def fits(group: int) -> bool:
    """Whether levels with so many inputs in a group can be packed."""
    return group % 8 == 0


def pack(levels: Tensor, scale: Tensor, zero: Tensor, *, bits: int) -> tuple[Tensor, Tensor]:
    """Levels and tables of a matrix `levels · scale + zero`, as the kernels take them.

    Args:
      levels: (O, I) whole numbers; from 0 to 15 for 4 bits, from -128 to 127 for 8.
      scale: of each group of inputs, float32, (O, G).
      zero: like `scale`.
      bits: 4 or 8.

    Returns:
      Levels (P, I · bits / 32, 64), int32, and tables (P, G, 2, 64); missing outputs are 0.
    """
    each, missing = 32 // bits, -len(levels) % PANEL
    words = torch.cat([_words(part, bits, each) for part in levels.split(_PACKED_AT_ONCE)])
    tables = torch.stack((scale, zero), -1)
    if missing:
        words, tables = (
            torch.cat((t, t.new_zeros(missing, *t.shape[1:]))) for t in (words, tables)
        )
    words = words.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()
    return words, tables.unflatten(0, (-1, PANEL)).permute(0, 2, 3, 1).contiguous()


_PACKED_AT_ONCE = 4096
"""Rows, for words of levels take several times their memory while they are packed."""


def _words(levels: Tensor, bits: int, each: int) -> Tensor:
    words = torch.zeros(len(levels), levels.shape[1] // each, dtype=torch.int32)
    for place in range(each):
        words |= (levels[:, place::each].int() & (2**bits - 1)) << (bits * place)
    return words


def unpacked(levels: Tensor, tables: Tensor, *, inputs: int) -> Tensor:
    """The matrix (I, O) of a result of `pack`, O a multiple of 64."""
    each = inputs // levels.shape[1]
    bits = 32 // each
    parts = torch.stack([levels >> bits * place for place in range(each)], 2) & 2**bits - 1
    if bits == 8:
        parts = (parts ^ 128) - 128
    scale, zero = tables.repeat_interleave(inputs // tables.shape[1], 1).unbind(2)
    return (parts.flatten(1, 2) * scale + zero).transpose(0, 1).flatten(1)


def product(x: jax.Array, *panels: jax.Array) -> jax.Array:
    """`x Wᵀ` in a program for CPUs: (M, I) by (P, I, 64) float32 to (M, 64 P).

    Several matrices of as many inputs, up to three, give their outputs next to each other.

    Raises:
      ValueError: shapes or dtypes do not fit, or there are more matrices.
    """
    inputs = panels[0].shape[1]
    if len(panels) > 3 or {each.shape[1:] for each in panels} != {(inputs, PANEL)}:
        shapes = ", ".join(str(each.shape) for each in panels)
        raise ValueError(f"panels must be up to 3 of (P, {inputs}, {PANEL}), got {shapes}")
    outputs = sum(len(each) for each in panels) * PANEL
    result = jax.ShapeDtypeStruct((len(x), outputs), jnp.float32)
    return _called(NAMES["float"], [result], x, *panels, inputs=inputs)


def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, sees: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`softmax(q kᵀ) v` over the keys that each query sees; 0 for a query that sees no key.

    Args:
      q: (N, M, H, D), float32, with the scale in it; D a multiple of 32.
      k: (N, K, S, D), each head for H / K of the queries'.
      v: like `k`.
      sees: boolean, (N or 1, S, M).

    Returns:
      The result (N, M, H, D), and of the exponentials, (N, H, M), the largest score, which is
      subtracted before, and the sum.

    Raises:
      ValueError: shapes or dtypes do not fit.
    """
    count, queries, heads, features = q.shape
    _, groups, keys, _ = k.shape
    fit = k.shape == v.shape == (count, groups, keys, features) and heads % max(groups, 1) == 0
    if not fit or features % 32 or sees.shape not in ((count, keys, queries), (1, keys, queries)):
        shapes = " and ".join(str(each.shape) for each in (q, k, v, sees))
        raise ValueError(f"cannot attend {shapes}: D must be a multiple of 32")
    if {x.dtype for x in (q, k, v)} != {jnp.dtype("float32")} or sees.dtype != jnp.bool_:
        dtypes = ", ".join(str(each.dtype) for each in (q, k, v, sees))
        raise ValueError(f"q, k and v must be float32 and what is seen boolean, got {dtypes}")
    if 0 in (count, queries, heads, keys):
        none = jnp.zeros((count, heads, queries), jnp.float32)
        return jnp.zeros(q.shape, jnp.float32), none, none
    few = queries <= _FEW_QUERIES
    if few:
        name, columns, scratch = "attention_few", queries, (heads // groups, keys + 1)
        sees = sees.swapaxes(1, 2)
    else:
        name, columns = "attention", queries + -queries % COLUMNS
        scratch = (features + keys, COLUMNS)
        sees = jnp.pad(sees, ((0, 0), (0, 0), (0, columns - queries)))
    results = [
        jax.ShapeDtypeStruct(q.shape, jnp.float32),
        jax.ShapeDtypeStruct((count, heads, 2, columns), jnp.float32),
        jax.ShapeDtypeStruct((threads_per_call(), *scratch), jnp.float32),
    ]
    out, sums, _ = cpu_calls.call(NAMES[name], results, q, k, v, sees.astype(jnp.int8))
    return out, sums[:, :, 0, :queries], sums[:, :, 1, :queries]


_FEW_QUERIES = 8
"""Queries of a head up to which each is computed by itself, and not 32 (with AVX2 16) at once."""


def packed(x: jax.Array, levels: jax.Array, tables: jax.Array) -> jax.Array:
    """The same as `product`, of levels and tables that `pack` makes.

    Raises:
      ValueError: shapes or dtypes do not fit.
    """
    rows, inputs = x.shape
    bits = 32 * levels.shape[1] // max(inputs, 1)
    if bits not in (4, 8):
        raise ValueError(f"levels {levels.shape} are not of {inputs} inputs in 4 or 8 bits")
    results = [
        jax.ShapeDtypeStruct((rows, len(levels) * PANEL), jnp.float32),
        jax.ShapeDtypeStruct((threads_per_call(), inputs if rows > FEW else 1, PANEL), jnp.float32),
    ]
    return _called(NAMES[bits], results, x, levels, tables, inputs=32 // bits * levels.shape[1])


def _called(
    name: str, results: list[jax.ShapeDtypeStruct], x: jax.Array, *weights: jax.Array, inputs: int
) -> jax.Array:
    """The first result of a kernel, which does no checks itself and needs a token."""
    if x.dtype != jnp.float32 or x.shape[-1] != inputs:
        raise ValueError(f"x must be float32 with {inputs} inputs, got {x.dtype}{x.shape}")
    if not x.size:
        return jnp.zeros(results[0].shape, results[0].dtype)
    return cpu_calls.call(name, results, x, *weights)[0]
