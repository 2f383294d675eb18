"""Whether every model family loads, runs on the device, and agrees with plain torch."""

import time
from collections.abc import Iterator

from jaxsr.doctor.checks import Finding, judged, raised, relative_error

# Dozens of layers in float32 at highest precision.
_TOLERANCE = 1e-3
_ADVICE = (
    "the section `torch in JAX` above says whether the adapter is at fault; "
    "python -m jaxsr.compare shows where platforms part"
)


def check_models() -> Iterator[Finding]:
    """A small network of each family, random weights: JAX on the device against torch."""
    from jaxsr.models.registry import FAMILIES

    for name in FAMILIES:
        began = time.perf_counter()
        try:
            error = _difference(name)
        except Exception as problem:
            yield raised(name, problem, _ADVICE)
            continue
        detail = (
            f"loads, compiles and runs in {time.perf_counter() - began:.1f} s; differs from torch "
            f"by {error:.1e} of the largest value"
        )
        yield judged(name, error <= _TOLERANCE, detail, _ADVICE)


def _difference(family: str) -> float:
    import jax
    import torch

    from jaxsr.interop import to_jax
    from jaxsr.models.registry import find_family, random_network

    network, example = random_network(family), find_family(family).example()
    model = to_jax(network)
    with jax.default_matmul_precision("highest"):
        run = jax.jit(lambda params, buffers, x: model.apply(params, buffers, x)[0])
        jax_output = jax.tree.leaves(run(model.params, model.buffers, example.numpy()))[0]
    with torch.inference_mode():
        torch_output = jax.tree.leaves(network(example))[0].numpy()
    return relative_error(jax_output, torch_output)
