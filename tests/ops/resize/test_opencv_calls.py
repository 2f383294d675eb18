"""`cv2.resize` called from programs for CPUs, against `cv2.resize` called by hand."""

import os
import subprocess
import sys
import textwrap

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxsr.interop.aot.topology import load_topology
from jaxsr.ops import resize
from jaxsr.ops._opencv import opencv as opencv_module
from jaxsr.ops._resize import opencv_calls

FLAGS = {
    "nearest": cv2.INTER_NEAREST,
    "bilinear": cv2.INTER_LINEAR,
    "bicubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
}
CALLED = [*(("uint8", method) for method in FLAGS), ("float32", "nearest"), ("float32", "bilinear")]
TARGET = "jaxsr_opencv_resize"


def photo(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.random.default_rng(0).random(shape) * 255).astype(dtype)


def by_cv2(images: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """Resizes (n, h, w, c) with OpenCV."""
    out = [cv2.resize(x, size[::-1], interpolation=FLAGS[method]) for x in images]
    return np.stack(out).reshape(len(images), *size, images.shape[-1])


def opencv(image, size, method="bilinear", **options):
    return jax.jit(lambda x: resize(x, size, method=method, convention="opencv", **options))(image)


@pytest.mark.sample(24)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("dtype", "method"), CALLED)
@pytest.mark.parametrize(
    ("before", "after"), [((13, 17), (29, 31)), ((64, 60), (16, 15)), ((7, 1), (3, 4))], ids=str
)
def test_equals_opencv(dtype, method, channels, before, after):
    images = photo((3, *before, channels), dtype)
    expected = by_cv2(images, after, method)
    np.testing.assert_array_equal(opencv(images, after, method), expected)


def test_large_batches_are_shared_among_threads():
    images = photo((7, 96, 96, 3), "uint8")
    np.testing.assert_array_equal(
        opencv(images, (240, 250)), by_cv2(images, (240, 250), "bilinear")
    )


@pytest.mark.parametrize(
    ("axes", "order"),
    [
        ((-3, -2), (0, 1, 2, 3)),
        ((-2, -1), (0, 3, 1, 2)),
        ((1, 0), (2, 1, 0, 3)),
        ((0, 3), (1, 0, 3, 2)),
        ((0, 1), (1, 2, 0, 3)),
    ],
    ids=str,
)
def test_axes(axes, order):
    """`order` arranges (n, h, w, c) so that `axes` are height and width."""
    images = photo((5, 9, 11, 3), "uint8")
    out = opencv(images.transpose(order), (20, 14), "bicubic", axes=axes)
    if axes == (0, 1):
        # (h, w, n, c) are images of 15 channels, which XLA resizes.
        np.testing.assert_allclose(
            np.asarray(out, int), by_cv2(images, (20, 14), "bicubic").transpose(order), atol=1
        )
        return
    planes = axes != (-3, -2)
    if planes:
        each = images.transpose(0, 3, 1, 2).reshape(15, 9, 11, 1)
        expected = by_cv2(each, (20, 14), "bicubic").reshape(5, 3, 20, 14).transpose(0, 2, 3, 1)
    else:
        expected = by_cv2(images, (20, 14), "bicubic")
    np.testing.assert_array_equal(out, expected.transpose(order))


def test_one_image_without_leading_axes():
    image = photo((9, 11), "uint8")
    np.testing.assert_array_equal(
        opencv(image, (20, 14), axes=(0, 1)),
        by_cv2(image[None, ..., None], (20, 14), "bilinear")[0, ..., 0],
    )


def calls(function, *arrays) -> int:
    return jax.jit(function).lower(*arrays).as_text().count(TARGET)


def test_vmap_is_one_call():
    images = photo((4, 2, 9, 11, 3), "uint8")
    expected = np.stack([by_cv2(x, (20, 14), "bilinear") for x in images])

    def each(x):
        return resize(x, (20, 14), convention="opencv")

    for axis in (0, 1, 4):
        mapped = jax.vmap(each, in_axes=axis, out_axes=axis)
        moved = jnp.moveaxis(images, 0, axis)
        np.testing.assert_array_equal(jax.jit(mapped)(moved), np.moveaxis(expected, 0, axis))
        assert calls(mapped, moved) == 1
    twice = jax.vmap(jax.vmap(each))
    np.testing.assert_array_equal(jax.jit(twice)(images), expected)


def test_gradients_are_those_of_the_kernels_in_jax(monkeypatch):
    images = jnp.asarray(photo((2, 9, 11, 3), "float32"))

    def loss(x):
        return (resize(x, (20, 14), convention="opencv") ** 2).sum()

    def derivatives():
        def tangent(x):
            return jax.jvp(jax.grad(loss), (x,), (jnp.cos(x),))[1]

        return jax.jit(jax.grad(loss))(images), jax.jit(tangent)(images)

    called = derivatives()
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    for got, want in zip(called, derivatives(), strict=True):
        # Values to 255; the two forward passes differ by roundings.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


def test_a_uint8_image_inside_of_a_gradient():
    images = photo((2, 9, 11, 3), "uint8")

    def loss(factor):
        return (factor * resize(images, (20, 14), convention="opencv").astype(jnp.float32)).sum()

    expected = by_cv2(images, (20, 14), "bilinear").astype(np.float64).sum()
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(1.0), expected, rtol=1e-5)


@pytest.mark.parametrize("rows", [8, 6])
def test_rows_stay_on_their_devices(rows):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    images = photo((rows, 9, 11, 3), "uint8")
    spec = PartitionSpec("data") if rows % 4 == 0 else PartitionSpec()
    placed = jax.device_put(images, NamedSharding(mesh, spec))
    run = jax.jit(lambda x: resize(x, (20, 14), convention="opencv"))
    np.testing.assert_array_equal(run(placed), by_cv2(images, (20, 14), "bilinear"))
    text = run.lower(placed).compile().as_text()
    assert text is not None
    assert "all-gather" not in text
    assert (f"u8[{rows // 4},20,14,3]" in text) == (rows % 4 == 0)


@pytest.mark.parametrize(
    ("dtype", "shape", "method"),
    [
        ("float16", (9, 11, 3), "bilinear"),
        ("float32", (9, 11, 3), "area"),
        ("float32", (9, 11, 3), "bicubic"),
        ("uint8", (9, 11, 3), "lanczos"),
        ("uint8", (9, 11, 5), "bilinear"),
    ],
    ids=str,
)
def test_images_that_stay_with_jax(dtype, shape, method):
    def run(x):
        return resize(x, (20, 14), method=method, convention="opencv")

    assert calls(run, jnp.zeros(shape, dtype)) == 0


def test_switched_off_or_without_opencv(monkeypatch):
    image = photo((9, 11, 3), "uint8")

    def calls_now() -> int:
        return calls(lambda x: resize(x, (20, 14), convention="opencv"), image)

    assert calls_now() == 1
    monkeypatch.setattr(opencv_calls, "opencv", lambda: None)
    assert calls_now() == 0
    monkeypatch.undo()
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    assert calls_now() == 0


def test_opencv_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert opencv_module.__wrapped__() is None


def test_the_version_is_part_of_the_program(monkeypatch):
    image = photo((9, 11, 3), "uint8")

    def text():
        return jax.jit(lambda x: resize(x, (20, 14), convention="opencv")).lower(image).as_text()

    version = ", ".join(str(int(part)) for part in cv2.__version__.split(".")[:3])
    assert version in text()
    monkeypatch.setattr(cv2, "__version__", "4.99.1-dev")
    assert "4, 99, 1" in text()


def test_an_error_of_opencv_is_one_line(monkeypatch):
    def fail(*_, **__):
        raise cv2.error("no such image\nand more")

    monkeypatch.setattr(cv2, "resize", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"{TARGET} of uint8") as error:
        jax.block_until_ready(opencv(photo((1, 9, 12, 3), "uint8"), (20, 14)))
    assert len(str(error.value).splitlines()) == 1


def test_the_same_traced_program_lowers_for_a_tpu():
    topology = load_topology("v5e:1x1")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    image = jax.ShapeDtypeStruct((9, 11, 3), jnp.uint8, sharding=device)
    lowered = jax.jit(lambda x: resize(x, (20, 14), convention="opencv")).lower(image)
    assert TARGET not in lowered.as_text()


def test_ops_imports_neither_opencv_nor_torch():
    program = textwrap.dedent("""
        import sys
        import jaxsr.ops
        assert not {"cv2", "torch"} & sys.modules.keys()
        import numpy as np
        out = jaxsr.ops.resize(np.full((2, 4, 4, 3), 7, np.uint8), 9, convention="opencv")
        assert (np.asarray(out) == 7).all()
        assert "cv2" in sys.modules
        assert "torch" not in sys.modules
    """)
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
