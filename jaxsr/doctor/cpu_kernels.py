"""Checks whether programs for CPUs call torch's kernels here, and how much that gains."""

import os
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from jaxsr.doctor.checks import Finding, judged, relative_error
from jaxsr.interop.install import install_extra

_SHAPES = ((4, 96, 96, 64), (64, 64, 3, 3))
_ROUNDS = 7


def check_cpu_kernels() -> Iterator[Finding]:
    """A convolution by torch's kernel and by XLA's: values, times; how idle threads wait."""
    import jax

    from jaxsr.interop.cpu_kernels import onednn
    from jaxsr.interop.cpu_kernels.torch_calls import threads_per_call
    from jaxsr.interop.lowerings.convolution import convolution_p
    from jaxsr.xla_calls.calls import SWITCH, enabled, is_native

    if not enabled():
        advice = f"unset {SWITCH} for torch's kernels"
        yield Finding("torch's kernels", "note", f"off: {SWITCH}={os.environ[SWITCH]}", advice)
        return
    rng = np.random.default_rng(0)
    cpu = jax.local_devices(backend="cpu")[0]
    images, weight = (jax.device_put(rng.standard_normal(s, np.float32), cpu) for s in _SHAPES)
    options = {
        "wrt": "out", "shape": _SHAPES[0], "stride": (1, 1), "padding": (1, 1), "groups": 1,
        "dilation": (1, 1), "channels_last": True, "precision": None,
    }  # fmt: skip

    def by_xla(x: jax.Array, w: jax.Array) -> jax.Array:
        layout = ("NHWC", "OIHW", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)

    torch_s, result = _timed(
        jax.jit(lambda x, w: convolution_p.bind(x, w, **options)), images, weight
    )
    xla_s, reference = _timed(jax.jit(by_xla), images, weight)
    error = relative_error(result, np.asarray(reference, np.float64))
    threads = threads_per_call()
    detail = (
        f"on, {threads} thread{'s' if threads > 1 else ''} a call: 64 to 64 channels of 3×3 in "
        f"{1e3 * torch_s:.1f} ms, XLA's in {1e3 * xla_s:.1f} ms; they differ by {error:.0e}"
    )
    yield judged("torch's kernels", error < 1e-5, detail, f"{SWITCH}=xla computes without them")
    if not is_native():
        yield Finding("oneDNN", "note", f"called by torch: {SWITCH}=torch", f"unset {SWITCH}")
    elif (version := onednn.version()) is not None:
        yield Finding("oneDNN", "ok", f"{version}, called directly")
    else:
        advice = f"{install_extra('cpu')} (Linux, x86-64) makes convolutions 3 to 10 % faster"
        yield Finding("oneDNN", "note", "called by torch, with a copy of each result", advice)
    if is_native():
        yield _check_products()
    if (
        os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE"
        and "GOMP_SPINCOUNT" not in os.environ
    ):
        yield Finding(
            "torch's idle threads",
            "note",
            "they spin while they wait, on cores that XLA's threads need",
            "import jaxsr.interop before torch, or set OMP_WAIT_POLICY=PASSIVE",
        )


def _check_products() -> Finding:
    """A product by the kernels that LLVM compiles, for generating text."""
    import jax

    from jaxsr.interop.cpu_kernels import panel_product

    if not panel_product.available():
        detail = "XLA multiplies where text is generated: no llvmlite, or no AVX2"
        advice = f"{install_extra('cpu')} (x86-64) makes generating text faster"
        return Finding("LLVM's products", "note", detail, advice)
    panel_product.register()
    rng = np.random.default_rng(0)
    x, panels = (rng.standard_normal(s, np.float32) for s in ((3, 256), (2, 256, 64)))
    cpu = jax.local_devices(backend="cpu")[0]
    result = panel_product.product(*jax.device_put((x, panels), cpu))
    reference = np.einsum("mi,pio->mpo", x.astype(np.float64), panels).reshape(3, -1)
    error = relative_error(result, reference)
    detail = f"called where text is generated; error {error:.0e} of the largest value"
    return judged("LLVM's products", error < 1e-5, detail, "pip uninstall llvmlite")


def _timed(function: Callable[..., object], *arrays: object) -> tuple[float, object]:
    import jax

    result = jax.block_until_ready(function(*arrays))
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready(function(*arrays))
        seconds.append(time.perf_counter() - start)
    return median(seconds), result
