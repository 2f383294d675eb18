"""Programs of image functions for one chip of a TPU v5e: no TPU, no measurement."""

from collections.abc import Callable, Sequence
from typing import Any

TOPOLOGY = "v5e:1x1"


def program_on_tpu(
    call: Callable[..., Any], arguments: Sequence[tuple[Sequence[int], Any]]
) -> tuple[Any, dict[str, float]]:
    """A function compiled for the chip, and what its memory is asked for.

    Args:
      call: the function.
      arguments: shapes and dtypes.

    Returns:
      The program, and in megabytes: `ideal` (inputs and outputs once), `moved` (read from and
      written to main memory) and `temporary`.
    """
    import jax
    from jax.sharding import SingleDeviceSharding

    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.interop.aot.traffic import main_memory_bytes

    chip = SingleDeviceSharding(load_topology(TOPOLOGY).devices[0])
    structs = [jax.ShapeDtypeStruct(shape, dtype, sharding=chip) for shape, dtype in arguments]
    program = jax.jit(call).lower(*structs).compile()
    memory = program.memory_analysis()
    assert memory is not None
    return program, {
        "ideal": (memory.argument_size_in_bytes + memory.output_size_in_bytes) / 1e6,
        "moved": main_memory_bytes(program.as_text() or "") / 1e6,
        "temporary": memory.temp_size_in_bytes / 1e6,
    }
