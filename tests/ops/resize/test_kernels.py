"""Every way of applying a table of taps, each against NumPy's dense product with that table."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from jaxsr.ops._resize import dispatch
from jaxsr.ops._resize.conventions import CONVENTIONS
from jaxsr.ops._resize.conventions.opencv import opencv_passes
from jaxsr.ops._resize.conventions.pillow import pillow_passes
from jaxsr.ops._resize.conventions.torch import torch_passes
from jaxsr.ops._resize.dispatch import by_products, by_sums, on_cpu, on_gpu
from jaxsr.ops._resize.kernels import (
    by_definition,
    by_fused_gathers,
    by_gather,
    by_loop,
    by_matmul,
    by_phase,
    can_take_digits,
    plan_phases,
)
from jaxsr.ops._resize.weights import make_taps
from tests.covering import every_pair

# extent, outputs, method, antialias
AXES = [
    (48, 24, "bicubic", True),
    (48, 12, "bilinear", True),
    (24, 96, "bicubic", False),
    (60, 42, "bicubic", False),
    (40, 64, "bilinear", False),
    (900, 450, "bicubic", True),
    (31, 62, "bilinear", False),
]


def table(extent, outputs, method, antialias):
    passes = torch_passes(
        (extent,),
        np.dtype(np.float32),
        (0,),
        (outputs,),
        method=method,
        antialias=antialias,
        align_corners=False,
        scale=(None,),
    )
    return passes[0].taps


def dense(taps):
    matrix = np.zeros((taps.outputs, taps.extent))
    for o in range(taps.outputs):
        for i, w in zip(taps.index[o], taps.weight[o], strict=True):
            matrix[o, i] += w
    return matrix


def by_planned_phase(x, taps, axis):
    phases = plan_phases(taps)
    assert phases is not None
    return by_phase(x, taps, phases, axis)


WAYS = {
    "definition": by_definition,
    "phase": by_planned_phase,
    "gather": by_gather,
    "fused gathers": by_fused_gathers,
    "loop": by_loop,
    "matmul": by_matmul,
}


@pytest.mark.sample(12)
@pytest.mark.parametrize(("case", "way", "axis"), every_pair(AXES, list(WAYS), [0, 1, 2]))
def test_every_way_computes_the_same_sums(case, way, axis):
    taps = table(*case)
    shape = [3, 4, 5]
    shape[axis] = taps.extent
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    want = np.moveaxis(np.tensordot(dense(taps), x, (1, axis)), 0, axis)
    got = jax.jit(partial(WAYS[way], taps=taps, axis=axis))(x)
    # At most 16 float32 products of values below 1.
    np.testing.assert_allclose(got, want, atol=1e-6, rtol=0)


RULES = [(name, method) for name, rules in CONVENTIONS.items() for method in rules.methods]


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("rule", RULES, ids="-".join)
def test_a_resize_is_its_definition_axis_by_axis(rule, dtype):
    """The dispatched form against weights and sums alone, shrinking one axis, growing the other."""
    convention, method = rule
    rules = CONVENTIONS[convention]
    options: dict[str, Any] = {"method": method}
    if not rules.antialias_is_fixed:
        options["antialias"] = method in ("bilinear", "bicubic", "lanczos", "lanczos2")
    defaults = {"scale": (None, None), "align_corners": False, "matlab_edges": "clamp"}
    options |= {name: defaults[name] for name in rules.options}
    x = np.random.default_rng(0).random((21, 16, 3), np.float32)
    x = x if dtype == np.float32 else np.round(x * 255).astype(np.uint8)
    passes = rules.passes(x.shape, x.dtype, (0, 1), (9, 40), **options)
    expected = jnp.asarray(x)
    for step in passes:
        with jax.enable_x64(step.dtype == np.float64):
            expected = by_definition(expected.astype(step.dtype), step.taps, step.axis)
            expected = expected if step.finish is None else step.finish(expected)
    result = jax.jit(partial(dispatch.run_passes, passes=passes))(x)
    assert result.dtype == dtype and result.shape == (9, 40, 3)
    # At most 16 float32 products of values below 1 an axis. Levels are equal, but where float32
    # sums in another order fall on the other side of a tie.
    in_fixed_point = all(np.issubdtype(step.taps.weight.dtype, np.integer) for step in passes)
    atol = 2e-6 if dtype == np.float32 else 0 if in_fixed_point else 1
    np.testing.assert_allclose(result, expected.astype(dtype), atol=atol, rtol=0)


@pytest.mark.sample(12)
@pytest.mark.parametrize("way", ["phase", "gather", "loop"])
@pytest.mark.parametrize("case", AXES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_pixel_reaches_only_the_outputs_that_read_it(case, way, bad):
    taps = table(*case)
    reads = dense(taps) != 0
    call = jax.jit(partial(WAYS[way], taps=taps, axis=0))
    for pixel in (0, 1, taps.extent // 2, taps.extent - 1):
        x = np.ones(taps.extent, np.float32)
        x[pixel] = bad
        got = np.asarray(call(x))
        np.testing.assert_array_equal(np.isfinite(got), ~reads[:, pixel])
        # Where the image is continued, taps of both signs may meet one pixel.
        on_pixel = taps.index == pixel
        positive = (on_pixel & (taps.weight > 0)).any(1) & ~(on_pixel & (taps.weight < 0)).any(1)
        np.testing.assert_array_equal(got[positive], bad)


@pytest.mark.parametrize("lone", [0, 7, 20, 31])
def test_a_period_with_a_spare_tap_of_its_own_breaks_no_other(lone):
    outputs = 32
    index = np.arange(outputs)[:, None] + np.arange(2)
    weight = np.full((outputs, 2), 0.5)
    weight[lone] = 1, 0
    taps = make_taps(outputs + 1, index, weight, step=1.0)
    x = jnp.asarray(np.random.default_rng(0).random((3, outputs + 1), np.float32))
    phases = plan_phases(taps)
    if phases is not None:
        out = by_phase(x, taps, phases, 1)
        np.testing.assert_allclose(out, np.asarray(x) @ dense(taps).T, rtol=1e-6)
    assert phases is not None or 0 < lone < outputs - 1


def test_no_phases_where_the_ratio_has_none():
    assert plan_phases(table(1000, 701, "bicubic", False)) is None
    assert plan_phases(table(1080, 640, "bicubic", True)) is None
    assert plan_phases(table(5, 3, "bilinear", False)) is None


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "sizes", [((40, 36), (20, 18)), ((20, 18), (40, 54)), ((700, 9), (350, 9))]
)
@pytest.mark.parametrize("bad", [None, np.nan, pytest.param(np.inf, marks=pytest.mark.slow)])
def test_products_for_tpu_agree_with_sums(sizes, bad):
    """The route that only a TPU takes, run here."""
    before, after = sizes
    x = np.random.default_rng(0).random((2, *before), dtype=np.float32)
    if bad is not None:
        x[1, [0, before[0] // 2], 5] = bad
    passes = torch_passes(
        x.shape,
        x.dtype,
        (1, 2),
        after,
        method="bicubic",
        antialias=True,
        align_corners=False,
        scale=(None, None),
    )
    got = jax.jit(partial(by_products, passes=passes))(x)
    want = jax.jit(partial(by_sums, passes=passes))(x)
    # Different orders of at most 16 float32 products of values below 1.
    np.testing.assert_allclose(got, want, atol=1e-6, rtol=0)
    assert np.isfinite(got[0]).all()
    gradient = jax.jit(jax.grad(lambda x: by_products(x, passes).sum()))(np.nan_to_num(x))
    other = jax.jit(jax.grad(lambda x: by_sums(x, passes).sum()))(np.nan_to_num(x))
    np.testing.assert_allclose(gradient, other, atol=1e-5, rtol=0)


@pytest.mark.sample(8)
@pytest.mark.parametrize("after", [(20, 18), (90, 54), (7, 80)])
@pytest.mark.parametrize(
    ("library", "method"),
    [(p, m) for p in ("pillow", "torch") for m in ("bilinear", "bicubic", "lanczos")][:-1],
)
def test_digits_for_tpu_give_the_libraries_levels(library, method, after):
    """The route of uint8 images that only a TPU takes, run here; pixels at both ends of the range
    make sums leave it, and an edge of 0 beside 255 has the largest ones."""
    levels = np.random.default_rng(0).integers(0, 256, (40, 36), np.uint8)
    levels[5:30, 4:20] = np.where(levels[5:30, 4:20] > 100, 255, 0)
    if library == "pillow":
        passes = pillow_passes(levels.shape, levels.dtype, (0, 1), after, method=method)
        filters = Image.Resampling
        want = Image.fromarray(levels).resize(after[::-1], filters[method.upper()])
    else:
        passes = torch_passes(
            levels.shape, levels.dtype, (0, 1), after,
            method=method, antialias=True, align_corners=False, scale=(None, None),
        )  # fmt: skip
        image = torch.from_numpy(levels)[None, None]
        want = F.interpolate(image, after, mode=method, antialias=True)[0, 0]
    run = jax.jit(lambda x: by_sums(x, passes, digits=True))
    assert "dot_general" in str(jax.make_jaxpr(run)(levels))
    np.testing.assert_array_equal(run(levels), np.asarray(want))


def test_digits_leave_what_they_cannot_add_up():
    """OpenCV drops bits of each product, and a filter of thousands of taps leaves float32."""
    linear = opencv_passes((40, 36), np.dtype(np.uint8), (0, 1), (30, 50), method="bilinear")
    long = pillow_passes((9000,), np.dtype(np.uint8), (0,), (3,), method="bicubic")
    for passes, shape in ((linear, (40, 36)), (long, (9000,))):
        levels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        got = jax.jit(partial(by_sums, passes=passes, digits=True))(levels)
        np.testing.assert_array_equal(got, by_sums(jnp.asarray(levels), passes))
    assert not can_take_digits(jnp.zeros((40, 36), jnp.uint8), linear[1].taps)
    run = partial(by_sums, passes=long, digits=True)
    assert "dot_general" not in str(jax.make_jaxpr(run)(levels))


def test_a_cpu_multiplies_where_gathered_columns_would_evict_each_other(monkeypatch):
    monkeypatch.setattr(dispatch, "CACHE_BYTES", 0)
    monkeypatch.setattr(dispatch, "SAME_SET_BYTES", 4)
    image = np.random.default_rng(0).standard_normal((2, 3, 8, 13), np.float32)
    options: dict[str, Any] = {"mode": "bilinear", "align_corners": True}
    passes = torch_passes(
        image.shape, image.dtype, (2, 3), (16, 27),
        method="bilinear", antialias=False, align_corners=True, scale=(None, None),
    )  # fmt: skip
    run = jax.jit(lambda x: on_cpu(x, passes))
    assert "dot_general" in str(jax.make_jaxpr(run)(image))
    for bad in (0.0, np.nan, np.inf):
        image[0, 1, 3, 5] = bad
        want = F.interpolate(torch.from_numpy(image), (16, 27), **options)
        np.testing.assert_allclose(run(image), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run", [on_cpu, on_gpu])
def test_a_gradient_scatters_nothing(run):
    passes = torch_passes(
        (1, 2, 8, 9), np.dtype(np.float32), (2, 3), (15, 18),
        method="bilinear", antialias=False, align_corners=True, scale=(None, None),
    )  # fmt: skip
    image = jnp.ones((1, 2, 8, 9))
    gradient = jax.grad(lambda x: run(x, passes).sum())
    assert "scatter" not in str(jax.make_jaxpr(gradient)(image))


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [(32, 36), (13, 11)], ids=["phases", "no period"])
@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_a_gpu_computes_what_torch_does(method, size):
    image = np.random.default_rng(0).standard_normal((2, 3, 8, 9), np.float32)
    passes = torch_passes(
        image.shape, image.dtype, (2, 3), size,
        method=method, antialias=False, align_corners=False, scale=(None, None),
    )  # fmt: skip
    tensor = torch.from_numpy(image).requires_grad_()
    want = F.interpolate(tensor, size, mode=method)
    (gradient,) = torch.autograd.grad(want.square().sum(), tensor)
    result, back = jax.vjp(jax.jit(partial(on_gpu, passes=passes)), jnp.asarray(image))
    np.testing.assert_allclose(result, want.detach(), atol=1e-5)
    (got,) = back(2 * result)
    np.testing.assert_allclose(got, gradient, atol=1e-4)


@pytest.mark.parametrize(("size", "fused"), [((32, 36), "bilinear"), ((13, 11), "bicubic")])
def test_few_taps_are_one_kernel_on_a_gpu(size, fused):
    """A concatenation would keep the passes apart."""
    for method in ("bilinear", "bicubic"):
        passes = torch_passes(
            (1, 2, 8, 9), np.dtype(np.float32), (2, 3), size,
            method=method, antialias=False, align_corners=False, scale=(None, None),
        )  # fmt: skip
        program = str(jax.make_jaxpr(partial(on_gpu, passes=passes))(jnp.ones((1, 2, 8, 9))))
        assert ("concatenate" in program) == (method == "bicubic" and fused == "bilinear")
