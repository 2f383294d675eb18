"""Compiled products with panels against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxsr.interop.cpu_kernels import panel_product

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def compiled():
    if not panel_product.available():
        pytest.skip("needs llvmlite and a processor with AVX2")
    panel_product.register()


def error(y, reference):
    return np.linalg.norm(y - reference) / np.linalg.norm(reference)


def in_panels(weight):
    outputs, inputs = weight.shape
    return np.ascontiguousarray(weight.reshape(outputs // 64, 64, inputs).swapaxes(1, 2))


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 29])
def test_float32(rows):
    weight = RNG.standard_normal((192, 576), dtype=np.float32)
    x = RNG.standard_normal((rows, 576), dtype=np.float32)
    y = jax.jit(panel_product.product)(x, in_panels(weight))
    reference = x.astype(np.float64) @ weight.T.astype(np.float64)
    assert error(y, reference) < 5e-7  # float32 sums of 576 products


@pytest.mark.parametrize("shape", [(5, 3, 64, 96), (2, 40, 17, 64)])
def test_batched(shape):
    count, rows, inputs, outputs = shape
    x = RNG.standard_normal((count, rows, inputs), dtype=np.float32)
    matrices = RNG.standard_normal((count, inputs, outputs), dtype=np.float32)
    y = jax.jit(panel_product.batched)(x, matrices)
    assert error(y, x.astype(np.float64) @ matrices.astype(np.float64)) < 5e-7


@pytest.mark.parametrize("rows", [1, 2, 11])
@pytest.mark.parametrize("run", [16, 32, 256])
@pytest.mark.parametrize("bits", [4, 8])
def test_levels(bits, run, rows):
    low, high = (0, 16) if bits == 4 else (-128, 128)
    levels = torch.from_numpy(RNG.integers(low, high, (100, 512), dtype=np.int16))
    scale, zero = (
        torch.from_numpy(RNG.standard_normal((100, 512 // run), dtype=np.float32)) for _ in range(2)
    )
    x = RNG.standard_normal((rows, 512), dtype=np.float32)
    words, tables = panel_product.pack(levels, scale, zero, bits=bits)
    y = jax.jit(panel_product.packed)(x, words.numpy(), tables.numpy())
    each = (t.double().repeat_interleave(run, 1) for t in (scale, zero))
    weight = levels.double() * next(each) + next(each)
    reference = x.astype(np.float64) @ weight.numpy().T
    assert y.shape == (rows, 128) and not np.any(y[:, 100:])
    assert error(y[:, :100], reference) < 1e-6
    in_torch = torch.from_numpy(x) @ panel_product.unpacked(words, tables, inputs=512)
    assert error(in_torch.numpy()[:, :100], reference) < 1e-6


def test_a_token_has_the_same_bits_beside_others():
    panels = in_panels(RNG.standard_normal((128, 256), dtype=np.float32))
    x = RNG.standard_normal((19, 256), dtype=np.float32)
    product = jax.jit(panel_product.product)
    together, alone = product(x, panels), [product(x[i : i + 1], panels)[0] for i in range(19)]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_calls_that_run_side_by_side():
    panels = [in_panels(RNG.standard_normal((64, 64), dtype=np.float32)) for _ in range(40)]
    x = RNG.standard_normal((3, 64), dtype=np.float32)
    every = jax.jit(lambda x, panels: [panel_product.product(x, p) for p in panels])
    for _ in range(20):
        for y, p in zip(every(x, panels), panels, strict=True):
            np.testing.assert_allclose(y, x @ p[0], atol=1e-4)


def test_no_tokens():
    panels = jnp.ones((2, 16, 64))
    assert panel_product.product(jnp.ones((0, 16)), panels).shape == (0, 128)
    assert panel_product.batched(jnp.ones((2, 0, 16)), jnp.ones((2, 16, 32))).shape == (2, 0, 32)


@pytest.mark.parametrize(
    "x", [jnp.ones((2, 15)), jnp.ones((2, 16), jnp.bfloat16), jnp.ones((2, 16), jnp.int32)]
)
def test_what_the_kernel_would_read_beyond_is_refused(x):
    with pytest.raises(ValueError, match="x must be float32 with 16 inputs, got"):
        panel_product.product(x, jnp.ones((1, 16, 64)))
    with pytest.raises(ValueError, match=r"inputs"):
        panel_product.packed(x, jnp.zeros((1, 4, 64), jnp.int32), jnp.ones((1, 1, 2, 64)))


def test_outputs_between_columns_are_refused():
    with pytest.raises(ValueError, match="multiple of 32"):
        panel_product.batched(jnp.ones((1, 2, 16)), jnp.ones((1, 16, 33)))
