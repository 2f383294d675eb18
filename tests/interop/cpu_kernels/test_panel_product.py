"""Compiled products with panels against float64, and compiled attention against torch's."""

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


@pytest.mark.parametrize("rows", [1, 14])
@pytest.mark.parametrize("sizes", [(3, 1), (1, 2, 1)])
def test_matrices_beside_each_other(sizes, rows):
    every = [in_panels(RNG.standard_normal((64 * n, 96), dtype=np.float32)) for n in sizes]
    x = RNG.standard_normal((rows, 96), dtype=np.float32)
    product = jax.jit(panel_product.product)
    apart = [product(x, panels) for panels in every]
    np.testing.assert_array_equal(product(x, *every), np.concatenate(apart, 1))


def torch_attention(q, k, v, sees):
    """torch's, in float64, of arrays as `panel_product.attention` takes them."""
    q, k, v, mask = (torch.from_numpy(np.array(t)) for t in (q, k, v, sees))
    mask = mask.transpose(1, 2)[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        q.double().transpose(1, 2), k.double(), v.double(), mask, scale=1, enable_gqa=True
    )
    return out.transpose(1, 2).numpy()


# Tokens with all that came before, with what a window or a padded row shows, and a decode step's.
@pytest.mark.parametrize(
    ("shape", "keys"),
    [
        ((1, 70, 6, 2, 64), 70),
        ((2, 33, 2, 2, 32), 50),
        ((3, 1, 6, 2, 64), 41),
        ((2, 5, 4, 1, 96), 16),
        pytest.param((1, 512, 9, 3, 64), 512, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("window", [None, 7])
def test_attention(window, shape, keys):
    count, queries, heads, groups, features = shape
    q, k, v = (
        RNG.standard_normal(size, dtype=np.float32)
        for size in ((count, queries, heads, features), *[(count, groups, keys, features)] * 2)
    )
    place = np.arange(keys)[:, None]
    last = np.arange(queries) + keys - queries
    sees = (place <= last) & (place > last - (window or keys))
    sees = np.broadcast_to(sees, (count if window else 1, keys, queries)).copy()
    if window:
        sees[-1] &= place >= 5  # padding: its own tokens see nothing
        sees[0] &= RNG.random(sees[0].shape) < 0.8
    out, largest, total = jax.jit(panel_product.attention)(q / 8, k, v, sees)
    reference = torch_attention(q / 8, k, v, sees)
    np.testing.assert_allclose(out, np.nan_to_num(reference), atol=2e-6)  # means of values near 1
    seen = np.asarray(sees.any(1))
    assert not np.any(np.asarray(out)[~np.broadcast_to(seen, (count, queries))])
    each = np.repeat(k.astype(np.float64), heads // groups, 1)
    scores = np.einsum("nmhd,nhsd->nhms", q / 8, each)
    scores = np.where(sees.swapaxes(1, 2)[:, None], scores, -np.inf)
    sums = np.logaddexp.reduce(scores, -1)
    chosen = np.broadcast_to(seen[:, None], sums.shape)
    logsumexp = np.asarray(largest)[chosen] + np.log(np.asarray(total)[chosen])
    np.testing.assert_allclose(logsumexp, sums[chosen], atol=2e-6)


def test_a_query_has_the_same_bits_beside_others():
    q = RNG.standard_normal((1, 45, 2, 32), dtype=np.float32)
    k, v = (RNG.standard_normal((1, 2, 45, 32), dtype=np.float32) for _ in range(2))
    sees = np.triu(np.ones((1, 45, 45), bool))
    attention = jax.jit(panel_product.attention)
    together = attention(q, k, v, sees)[0]
    some = attention(q[:, :20], k[:, :, :20], v[:, :, :20], sees[:, :20, :20])[0]
    np.testing.assert_array_equal(together[:, :20], some)


@pytest.mark.parametrize("queries", [1, 40])
def test_scores_that_are_no_numbers_are_not_hidden(queries):
    q, k, v = jnp.ones((1, queries, 1, 32)), jnp.ones((1, 1, 40, 32)), jnp.ones((1, 1, 40, 32))
    sees = jnp.ones((1, 40, queries), bool)
    out, *_ = panel_product.attention(q.at[0, -1].set(jnp.nan), k, v, sees)
    assert jnp.isnan(out[0, -1]).all() and not jnp.isnan(out[0, :-1]).any()
    assert jnp.isnan(panel_product.attention(q, k.at[0, 0, 3, 0].set(jnp.inf), v, sees)[0]).all()


@pytest.mark.sample(6)
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
    none, keys, sees = jnp.ones((2, 0, 4, 32)), jnp.ones((2, 2, 3, 32)), jnp.ones((2, 3, 0), bool)
    assert panel_product.attention(none, keys, keys, sees)[0].shape == none.shape


@pytest.mark.parametrize(
    "x", [jnp.ones((2, 15)), jnp.ones((2, 16), jnp.bfloat16), jnp.ones((2, 16), jnp.int32)]
)
def test_what_the_kernel_would_read_beyond_is_refused(x):
    with pytest.raises(ValueError, match="x must be float32 with 16 inputs, got"):
        panel_product.product(x, jnp.ones((1, 16, 64)))
    with pytest.raises(ValueError, match=r"inputs"):
        panel_product.packed(x, jnp.zeros((1, 4, 64), jnp.int32), jnp.ones((1, 1, 2, 64)))


def test_matrices_of_other_inputs_and_too_many_are_refused():
    x, panels = jnp.ones((2, 16)), jnp.ones((1, 16, 64))
    for every in [(panels, jnp.ones((1, 17, 64))), [panels] * 4]:
        with pytest.raises(ValueError, match="panels must be up to 3 of"):
            panel_product.product(x, *every)


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        (((1, 4, 4, 33), (1, 2, 5, 33), (1, 5, 4)), "multiple of 32"),
        (((1, 4, 4, 32), (1, 3, 5, 32), (1, 5, 4)), "cannot attend"),
        (((1, 4, 4, 32), (1, 2, 5, 32), (1, 4, 5)), "cannot attend"),
        (((2, 4, 4, 32), (1, 2, 5, 32), (1, 5, 4)), "cannot attend"),
    ],
)
def test_attention_refuses_what_the_kernel_would_read_beyond(shapes, match):
    q, k, sees = (jnp.ones(shape) for shape in shapes)
    with pytest.raises(ValueError, match=match):
        panel_product.attention(q, k, k, sees > 0)


def test_attention_refuses_other_dtypes():
    q, k, sees = jnp.ones((1, 4, 4, 32)), jnp.ones((1, 2, 5, 32)), jnp.ones((1, 5, 4))
    for arrays in [(q.astype(jnp.bfloat16), k, sees > 0), (q, k, sees)]:
        with pytest.raises(ValueError, match="q, k and v must be float32"):
            panel_product.attention(arrays[0], k, k, arrays[2])


def test_machine_code_is_kept_and_damage_is_named(tmp_path, monkeypatch, caplog):
    import llvmlite.binding as llvm

    panel_product._compiled(1, tmp_path)
    (path,) = tmp_path.iterdir()
    code = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(llvm, "create_pass_builder", lambda *_: pytest.fail("compiled again"))
        engine = panel_product._compiled(1, tmp_path)
    assert all(map(engine.get_function_address, panel_product.NAMES.values()))
    path.write_bytes(code[:-1] + b"\1")
    panel_product._compiled(1, tmp_path)
    assert path.read_bytes() == code and "is damaged" in caplog.text
