"""Simple operations on the device against the same in float64 on the CPU, by NumPy.

A TPU multiplies float32 matrices in bfloat16 by default, a GPU in TF32; both show here
as they would in a training run.
"""

from collections.abc import Iterator

import numpy as np

from jaxsr.doctor.checks import Finding, judged, relative_error

# Relative to the largest result. Sums of 512 float32 products stay within 512 roundings of 6e-8;
# bfloat16 rounds inputs to 8 bits, 4e-3 each.
_FLOAT32, _BFLOAT16 = 3e-5, 2e-2
_WRONG = (
    "unset your own XLA_FLAGS and JAX_DEFAULT_MATMUL_PRECISION; if it stays, this build of JAX "
    "computes wrongly on this device: install another"
)


def check_arithmetic() -> Iterator[Finding]:
    """Products at each precision, convolution, functions, random numbers, all devices together."""
    import jax
    import jax.numpy as jnp
    from scipy import signal

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 512, 512))
    image, kernel = rng.standard_normal((64, 64)), rng.standard_normal((3, 3))
    x = np.linspace(-10, 10, 4096)
    x_32, image_32, kernel_32 = (jnp.asarray(v, "float32") for v in (x, image, kernel))

    def multiply(precision: str, dtype: str) -> jax.Array:
        product = jnp.matmul(jnp.asarray(a, dtype), jnp.asarray(b, dtype), precision=precision)
        return product.astype("float32")

    yield _compare("float32 product, highest", multiply("highest", "float32"), a @ b, _FLOAT32)
    yield _default_precision(multiply("default", "float32"), a @ b)
    yield _compare("bfloat16 product", multiply("default", "bfloat16"), a @ b, _BFLOAT16)
    convolved = jax.lax.conv_general_dilated(
        image_32[None, None], kernel_32[None, None], (1, 1), "SAME", precision="highest"
    )
    reference = signal.correlate2d(image, kernel, mode="same")
    yield _compare("float32 convolution, highest", convolved[0, 0], reference, _FLOAT32)
    yield _compare("exp", jnp.exp(x_32), np.exp(x), 1e-5)
    yield _compare("tanh", jnp.tanh(x_32), np.tanh(x), 1e-5)
    yield _every_device()


def _compare(subject: str, result: object, reference: np.ndarray, most: float) -> Finding:
    error = relative_error(result, reference)
    detail = f"largest error {error:.1e} of the largest value"
    detail += "" if error <= most else f", more than {most:.0e}"
    return judged(subject, error <= most, detail, _WRONG)


def _default_precision(result: object, reference: np.ndarray) -> Finding:
    subject, error = "float32 product, default", relative_error(result, reference)
    detail = f"largest error {error:.1e} of the largest value"
    if error <= _FLOAT32:
        return Finding(subject, "ok", detail)
    return Finding(
        subject,
        "note" if error <= _BFLOAT16 else "fail",
        f"{detail}: inputs are rounded to {'bfloat16' if error > 1e-3 else 'TF32'}",
        "fast and usual for training; --matmul-precision highest computes in float32",
    )


def _every_device() -> Finding:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    devices = jax.local_devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("all",))
    rows = np.arange(4.0 * len(devices), dtype=np.float32).reshape(len(devices), 4)
    placed = jax.device_put(rows, NamedSharding(mesh, PartitionSpec("all")))
    summed = np.asarray(jax.jit(lambda x: x.sum(0))(placed))
    exact = np.array_equal(summed, rows.sum(0))
    detail = "exact" if exact else f"{summed} instead of {rows.sum(0)}"
    return judged(f"sum over {len(devices)} device(s)", exact, detail, "restart the machine")
