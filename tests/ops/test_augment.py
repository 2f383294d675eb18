"""Augmentation by key: what moves together, torchvision's boxes, meshes, one program."""

import math
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxsr import ops
from jaxsr.ops._augment.batch import CheckedStep
from jaxsr.ops._augment.geometric import random_box

KEY = jax.random.key(0)
COUNT = 64
POLICIES = {
    "flip": (ops.RandomFlip(vertical=0.5),),
    "crop": (ops.RandomResizedCrop(size=(20, 24)),),
    "affine": (
        ops.RandomAffine(
            degrees=30, translate=(0.1, 0.2), scale=(0.7, 1.4), shear=10, border="edge"
        ),
    ),
    "perspective": (ops.RandomPerspective(probability=0.8, border="edge"),),
    "elastic": (ops.ElasticTransform(alpha=25, sigma=4, border="edge"),),
    "jitter": (ops.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),),
    "erasing": (ops.RandomErasing(fill=0.5),),
    "all": (
        ops.RandomResizedCrop(size=24),
        ops.RandomFlip(),
        ops.RandomAffine(degrees=10),
        ops.ColorJitter(brightness=0.4),
        ops.RandomErasing(),
    ),
}


def ramp(count=COUNT, height=28, width=36):
    """Columns and rows of pixels' centres as colours: a picture that says where it was cut."""
    y, x = np.meshgrid(np.arange(height) + 0.5, np.arange(width) + 0.5, indexing="ij")
    return np.broadcast_to(np.stack([x, y, 0 * x], -1), (count, height, width, 3)).astype(
        np.float32
    )


def draw(count=8, dtype="float32"):
    levels = np.random.default_rng(0).integers(0, 256, (count, 28, 36, 3))
    scale = {"uint8": 1, "uint16": 257}.get(dtype, 1 / 255)
    return jnp.asarray(levels * scale, dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["flip", "crop", "affine", "perspective", "elastic"])
def test_points_move_with_pictures(name):
    """Where a point comes to lie, the picture shows the place that it came from."""
    rng = np.random.default_rng(0)
    points = rng.uniform([10, 8], [26, 20], (COUNT, 12, 2)).astype(np.float32)
    out = jax.jit(lambda x, p: ops.augment(KEY, x, POLICIES[name], points=p))(ramp(), points)
    assert out.points is not None
    height, width = out.images.shape[1:3]
    shown = np.asarray(
        ops.remap(out.images, out.points[:, None, :, 1] - 0.5, out.points[:, None, :, 0] - 0.5)
    )[:, 0, :, :2]
    inside = ((out.points > 1) & (out.points < np.array([width - 1, height - 1]))).all(-1)
    # Antialiased pictures of a ramp differ from it near their edges alone.
    margin = 3 if name == "crop" else 0
    inside &= ((shown > margin) & (shown < np.array([36 - margin, 28 - margin]))).all(-1)
    assert inside.mean() > 0.3
    near = np.abs(shown - points)[inside]
    # Between pixels of a perspective the ramp is not quite straight.
    assert np.quantile(near, 0.95) < {"crop": 0.3, "perspective": 0.02}.get(name, 2e-3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("names", [("crop", "flip"), ("perspective",), ("elastic",)], ids=str)
def test_masks_and_boxes_move_with_pictures(names):
    masks = np.zeros((COUNT, 28, 36, 1), np.uint8)
    masks[:, 9:17, 12:25] = 7
    boxes = np.tile(np.array([[[12, 9, 25, 17]]], np.float32), (COUNT, 1, 1))
    images = np.broadcast_to(masks > 0, (COUNT, 28, 36, 3)).astype(np.float32)
    policy = [step for name in names for step in POLICIES[name]]
    run = jax.jit(lambda x, m, b: ops.augment(KEY, x, policy, masks=m, boxes=b))
    out = run(images, masks, boxes)
    assert out.masks is not None and out.boxes is not None
    assert set(np.unique(out.masks)) <= {0, 7}
    shown = np.asarray(out.images[..., 0])
    np.testing.assert_array_equal(np.asarray(out.masks)[..., 0][shown == 1], 7)
    for mask, (x1, y1, x2, y2) in zip(
        np.asarray(out.masks)[..., 0], np.asarray(out.boxes)[:, 0], strict=True
    ):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if rows.size:
            edges = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
            # The mask's edge is a whole pixel; a slanted corner has none of its own.
            atol = 0.51 if names == ("crop", "flip") else 1.0
            np.testing.assert_allclose(edges, (x1, y1, x2, y2), atol=atol)


@pytest.mark.slow
def test_corners_are_torchvisions():
    """The distribution of RandomPerspective.get_params: whole steps inwards, all alike likely."""
    height, width = 20, 31
    points = np.broadcast_to([[0.5, 0.5], [30.5, 19.5]], (4000, 2, 2))
    images = np.zeros((4000, height, width, 1), np.float32)
    policy = (ops.RandomPerspective(distortion=0.5, probability=1.0, method="nearest"),)
    out = jax.jit(lambda x, p: ops.augment(KEY, x, policy, points=p))(images, points)
    steps = np.abs(np.asarray(out.points) - points)
    np.testing.assert_allclose(steps, steps.round(), atol=2e-4)
    for axis, most in ((0, int(0.5 * (width // 2))), (1, int(0.5 * (height // 2)))):
        share = np.bincount(steps[..., axis].round().astype(int).ravel()) / 8000
        np.testing.assert_allclose(share, 1 / (most + 1), atol=0.02)


@pytest.mark.slow
def test_boxes_are_torchvisions():
    """The distribution of RandomResizedCrop.get_params, whose lines stand here."""
    height, width, scale, ratio = 60, 90, (0.08, 1.0), (3 / 4, 4 / 3)

    def reference(generator):
        area = height * width
        low, high = math.log(ratio[0]), math.log(ratio[1])
        for _ in range(10):
            target = area * torch.empty(1).uniform_(*scale, generator=generator).item()
            aspect = math.exp(torch.empty(1).uniform_(low, high, generator=generator).item())
            w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if 0 < w <= width and 0 < h <= height:
                y = torch.randint(0, height - h + 1, (1,), generator=generator).item()
                x = torch.randint(0, width - w + 1, (1,), generator=generator).item()
                return x, y, x + w, y + h
        raise AssertionError("none of ten fits")

    generator = torch.Generator().manual_seed(0)
    want = np.array([reference(generator) for _ in range(4000)], float)
    keys = jax.random.split(KEY, 4000)
    one = partial(random_box, height=height, width=width, scale=scale, ratio=ratio)
    draws = jax.jit(jax.vmap(one))(keys)
    got = np.asarray(draws, float)
    assert (got == np.round(got)).all()
    assert (got[:, :2] >= 0).all() and (got[:, 2:] <= [width, height]).all()
    for quantile in (0.1, 0.5, 0.9):
        # Four thousand draws know a quantile to about two pixels.
        near = np.quantile(got, quantile, 0) - np.quantile(want, quantile, 0)
        assert np.abs(near).max() <= 4


def test_a_box_that_cannot_fit_is_the_middle():
    draw_box = partial(random_box, height=10, width=100, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    box = jax.jit(draw_box)(KEY)
    np.testing.assert_array_equal(box, [45, 0, 55, 10])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param("all", "float32", marks=pytest.mark.slow),
        pytest.param("all", "uint8", marks=pytest.mark.slow),
        ("affine", "float32"),
        pytest.param("affine", "bfloat16", marks=pytest.mark.slow),
        pytest.param("elastic", "float32", marks=pytest.mark.slow),
        pytest.param("jitter", "float32", marks=pytest.mark.slow),
        pytest.param("jitter", "uint16", marks=pytest.mark.slow),
    ],
)
def test_any_mesh_layout_and_dtype(name, dtype):
    images, policy = draw(dtype=dtype), POLICIES[name]
    plain = jax.jit(lambda x: ops.augment(KEY, x, policy).images)(images)
    assert plain.dtype == images.dtype
    run = jax.jit(lambda key, x: ops.augment(key, x, policy).images)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(images, NamedSharding(mesh, P("data")))
    compiled = run.lower(KEY, placed).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    on_planes = jax.jit(lambda x: ops.augment(KEY, x, policy, axes=(-2, -1)).images)
    planes = on_planes(jnp.moveaxis(images, -1, 1))
    atol = {"float32": 1e-5, "bfloat16": 2**-6, "uint8": 1}.get(dtype, 3)
    for result in (compiled(KEY, placed), jnp.moveaxis(planes, 1, -1)):
        np.testing.assert_allclose(
            np.asarray(result, np.float32), np.asarray(plain, np.float32), atol=atol
        )


def test_keys_decide():
    images = draw()
    run = jax.jit(
        lambda key, x: ops.augment(key, x, (*POLICIES["crop"], *POLICIES["erasing"])).images
    )
    runs = [run(k, images) for k in (KEY, KEY, jax.random.key(1))]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert np.abs(runs[0] - runs[2]).max() > 0.1
    # Pictures of one batch differ from each other, and do not depend on the others.
    same = run(KEY, jnp.repeat(images[:1], 8, 0))
    np.testing.assert_allclose(same[0], runs[0][0], atol=1e-6)
    assert np.abs(same[0] - same[1]).max() > 0.1


@pytest.mark.slow
def test_flips_and_erasures_are_as_frequent_as_asked_for():
    images = ramp(2000)
    flipped = ops.augment(KEY, images, (ops.RandomFlip(horizontal=0.25),)).images
    assert abs((flipped[:, 0, 0, 0] > 1).mean() - 0.25) < 0.04
    erased = ops.augment(KEY, images + 1, (ops.RandomErasing(probability=0.75),)).images
    share = (np.asarray(erased) == 0).mean((1, 2, 3))
    assert abs((share > 0).mean() - 0.75) < 0.04
    assert share[share > 0].min() > 0.01 and share.max() < 0.36


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("sequence", [list, np.array])
def test_lists_and_arrays_are_stored_as_tuples(sequence):
    """torchvision's transforms take lists, also of (height, width)."""
    steps = [getattr(ops, name) for name in ops.__all__]
    steps = [step for step in steps if isinstance(step, type) and issubclass(step, CheckedStep)]
    assert len(steps) > 12
    for kind in steps:
        required = {"size": (4, 5)} if "size" in signature(kind).parameters else {}
        step = kind(**required)
        pairs = {name: value for name, value in vars(step).items() if isinstance(value, tuple)}
        same = kind(**{name: sequence(value) for name, value in pairs.items()})
        assert same == step and hash(same) == hash(step)
    step = ops.RandomResizedCrop(size=sequence([4, 5]), scale=sequence([0.5, 1.0]))
    assert ops.augment(KEY, IMAGES, step).images.shape == (2, 4, 5, 3)


IMAGES = np.zeros((2, 8, 9, 3), np.float32)
ONE_SHARE: dict[str, Any] = {"translate": (0.1,)}
NO_RANGE: dict[str, Any] = {"scale": 1.5}


@dataclass(frozen=True)
class Own:
    size: list[int]

    def __call__(self, keys, batch, layout):
        return batch


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(ops.augment, KEY, IMAGES[0], ()), "NHWC, or NCHW"),
        (partial(ops.augment, KEY, IMAGES, (), axes=(0, 1)), "NHWC, or NCHW"),
        (partial(ops.augment, KEY, IMAGES, (), masks=IMAGES[:, :4]), "do not fit"),
        (partial(ops.augment, KEY, IMAGES, (), boxes=np.zeros((2, 4))), "N, K, 4"),
        (partial(ops.augment, KEY, IMAGES, (), points=np.zeros((3, 1, 2))), "with N=2"),
        (partial(ops.RandomFlip, horizontal=1.5), "horizontal must be 0 to 1"),
        (partial(ops.RandomErasing, probability=-1), "probability must be 0 to 1"),
        (partial(ops.RandomResizedCrop, size=0), "at least 1"),
        (partial(ops.RandomResizedCrop, size=2, scale=(1.0, 0.5)), "least, greatest"),
        (partial(ops.augment, KEY, IMAGES, (), labels=np.zeros(2)), "one_hot"),
        (partial(ops.RandomPerspective, distortion=2), "distortion must be 0 to 1"),
        (partial(ops.RandomPerspective, method="area"), "unknown method"),
        (partial(ops.ElasticTransform, sigma=0), "sigma must be a finite number above 0"),
        (partial(ops.RandomAffine, degrees=-1), "degrees must be a finite number"),
        (partial(ops.RandomAffine, border="zeros"), "unknown border"),
        (partial(ops.RandomAffine, **ONE_SHARE), "translate must be shares of"),
        (partial(ops.RandomAffine, **NO_RANGE), "scale must be .least, greatest., got 1.5"),
        (partial(ops.RandomResizedCrop, size=2, method="nearest"), "antialias=True needs method"),
        (partial(ops.ColorJitter, hue=-0.1), "hue must be a finite number"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"images": None}, TypeError, "images must be a JAX or NumPy array, got NoneType"),
        ({"masks": [1, 2]}, TypeError, "masks must be a JAX or NumPy array, got list"),
        ({"masks": np.zeros((2, 8, 8, 1), int)}, TypeError, "masks must be uint8, uint16 or"),
        ({"masks": np.zeros((2, 8), np.uint8)}, ValueError, r"masks of shape \(2, 8\) do not fit"),
        ({"boxes": np.zeros((2, 4), np.float32)}, ValueError, "boxes must be"),
        (
            {"policy": [Own([1, 2])]},
            TypeError,
            r"hashable steps, got Own\(size=\[1, 2\]\) .*tuples",
        ),
        ({"policy": 3}, TypeError, r"policy must be steps such as \(ops.RandomFlip\(\),\), got 3"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    given = {"images": np.zeros((2, 8, 8, 3), np.uint8), "policy": (ops.RandomFlip(),)}
    given |= arguments
    images, policy = given.pop("images"), given.pop("policy")
    with pytest.raises(error, match=message):
        ops.augment(jax.random.key(0), images, policy, **given)
