"""Simple operations on the device against the same in float64 on the CPU, by NumPy.

A TPU multiplies float32 matrices in bfloat16 by default, a GPU in TF32; both show here
as they would in a training run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxsr.doctor.checks import Finding, relative_error

# Relative to the largest result. Sums of 512 float32 products stay within 512 roundings of 6e-8;
# bfloat16 rounds inputs to 8 bits, 4e-3 each.
_FLOAT32, _BFLOAT16 = 3e-5, 2e-2


def check_arithmetic() -> Iterator[Finding]:
    """Products at each precision, convolution, functions, random numbers, all devices together."""
    import jax

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 512, 512))
    reference = a @ b

    def multiply(precision: str, dtype: Any) -> Callable[[], Any]:
        x, y = jax.numpy.asarray(a, dtype), jax.numpy.asarray(b, dtype)
        return lambda: jax.numpy.matmul(x, y, precision=precision).astype("float32")

    yield _compare("float32 product, highest", multiply("highest", "float32"), reference, _FLOAT32)
    yield _default_precision(multiply("default", "float32"), reference)
    yield _compare("bfloat16 product", multiply("default", "bfloat16"), reference, _BFLOAT16)
    yield _convolution(rng)
    x = np.linspace(-10, 10, 4096)
    yield _compare("exp", lambda: jax.numpy.exp(jax.numpy.asarray(x, "float32")), np.exp(x), 1e-5)
    yield _compare(
        "tanh", lambda: jax.numpy.tanh(jax.numpy.asarray(x, "float32")), np.tanh(x), 1e-5
    )
    yield _every_device()


def _compare(
    subject: str, compute: Callable[[], Any], reference: np.ndarray, most: float
) -> Finding:
    error = relative_error(compute(), reference)
    detail = f"largest error {error:.1e} of the largest value"
    if error <= most:
        return Finding(subject, "ok", detail)
    return Finding(
        subject,
        "fail",
        f"{detail}, more than {most:.0e}",
        "unset XLA_FLAGS and JAX_DEFAULT_MATMUL_PRECISION; if it stays, this build of JAX computes "
        "wrongly on this device: install another",
    )


def _default_precision(compute: Callable[[], Any], reference: np.ndarray) -> Finding:
    error = relative_error(compute(), reference)
    detail = f"largest error {error:.1e} of the largest value"
    if error <= _FLOAT32:
        return Finding("float32 product, default", "ok", detail)
    return Finding(
        "float32 product, default",
        "note" if error <= _BFLOAT16 else "fail",
        f"{detail}: inputs are rounded to {'bfloat16' if error > 1e-3 else 'TF32'}",
        "fast and usual for training; --matmul-precision highest computes in float32",
    )


def _convolution(rng: np.random.Generator) -> Finding:
    import jax
    from scipy import signal

    image, kernel = rng.standard_normal((64, 64)), rng.standard_normal((3, 3))
    reference = signal.correlate2d(image, kernel, mode="same")
    return _compare(
        "float32 convolution, highest",
        lambda: jax.lax.conv_general_dilated(
            jax.numpy.asarray(image[None, None], "float32"),
            jax.numpy.asarray(kernel[None, None], "float32"),
            (1, 1),
            "SAME",
            precision="highest",
        )[0, 0],
        reference,
        _FLOAT32,
    )


def _every_device() -> Finding:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    devices = jax.local_devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("all",))
    rows = np.arange(4.0 * len(devices), dtype=np.float32).reshape(len(devices), 4)
    placed = jax.device_put(rows, NamedSharding(mesh, PartitionSpec("all")))
    summed = jax.jit(lambda x: x.sum(0))(placed)
    subject = f"sum over {len(devices)} device(s)"
    if np.array_equal(summed, rows.sum(0)):
        return Finding(subject, "ok", "exact")
    return Finding(
        subject, "fail", f"{np.asarray(summed)} instead of {rows.sum(0)}", "restart the machine"
    )
