"""RandAugment, TrivialAugment and AugMix: operations against Pillow, tables against torchvision."""

import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from PIL import Image, ImageEnhance, ImageOps

from jaxsr import ops
from jaxsr.errors import InputError
from jaxsr.models.build import import_library
from jaxsr.ops._augment import policies
from jaxsr.ops._augment.batch import Augmented, Layout
from jaxsr.ops._augment.operations import OPERATIONS, SIGNED, Space, apply_operation

KEY = jax.random.key(0)
HEIGHT, WIDTH, EACH = 20, 27, 5
ENHANCERS = {
    "Brightness": ImageEnhance.Brightness,
    "Color": ImageEnhance.Color,
    "Contrast": ImageEnhance.Contrast,
    "Sharpness": ImageEnhance.Sharpness,
}


def pictures(count, dtype="uint8"):
    """Random levels of a part of the range, so that contrast and equalisation change them."""
    rng = np.random.default_rng(0)
    low, span = rng.integers(0, 60, (2, count, 1, 1, 3))
    levels = low + rng.random((count, HEIGHT, WIDTH, 3)) ** 2 * (120 + span)
    scale = {"uint8": 1, "uint16": 257}.get(dtype, 1 / 255)
    return jnp.asarray(np.floor(levels) * scale, dtype)


def in_pillow(pixels, name, magnitude):
    """The operation as the authors' code calls Pillow."""
    image = Image.fromarray(pixels)
    shifts = {
        "ShearX": (1, magnitude, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, magnitude, 1, 0),
        "TranslateX": (1, 0, -int(magnitude), 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, -int(magnitude)),
    }
    if name in shifts:
        image = image.transform(image.size, Image.Transform.AFFINE, shifts[name])
    elif name in ENHANCERS:
        image = ENHANCERS[name](image).enhance(1 + magnitude)
    elif name == "Rotate":
        image = image.rotate(magnitude)
    elif name == "Posterize":
        image = ImageOps.posterize(image, int(magnitude))
    elif name == "Solarize":
        image = ImageOps.solarize(image, 255 * magnitude)
    elif name == "AutoContrast":
        image = ImageOps.autocontrast(image)
    elif name == "Equalize":
        image = ImageOps.equalize(image)
    return np.asarray(image)


def test_operations_are_pillows():
    rng = np.random.default_rng(1)
    names = [name for name in OPERATIONS for _ in range(EACH)]
    limits = {"Translate": 12, "Rotate": 135, "Solarize": 1}
    magnitudes = []
    for name in names:
        limit = limits.get(name.removesuffix("X").removesuffix("Y"), 0.9)
        value = rng.uniform(-limit if name in SIGNED else 0, limit)
        magnitudes.append(int(rng.integers(1, 8)) if name == "Posterize" else value)
    images = pictures(len(names))
    out = jax.jit(partial(apply_operation, method="nearest", fill=0, layout=Layout((-3, -2), -1)))(
        Augmented(images),
        operation=jnp.asarray([OPERATIONS.index(name) for name in names]),
        magnitude=jnp.asarray(magnitudes, jnp.float32),
    ).images
    for name, magnitude, image, got in zip(
        names, magnitudes, np.asarray(images), np.asarray(out), strict=True
    ):
        want = in_pillow(image, name, float(np.float32(magnitude)))
        unequal = (got != want).any(-1).mean()
        # Pillow's positions are in steps of 2⁻¹⁶ pixel: the nearest pixel may be the next one.
        assert unequal <= (0.01 if name.startswith(("Shear", "Rotate")) else 0), name


@pytest.mark.parametrize("name", ["RandAugment", "TrivialAugmentWide", "AugMix"])
def test_tables_are_torchvisions(name):
    try:
        import_library("torchvision")
    except InputError as error:
        pytest.skip(str(error))
    theirs = getattr(importlib.import_module("torchvision.transforms.v2"), name)
    ours, bins = {
        "RandAugment": (policies.rand_augment_tables(31, 224, 192), 31),
        "TrivialAugmentWide": (policies.trivial_augment_tables(31), 31),
        "AugMix": (policies.augmix_tables(224, 192, True), 10),
    }[name]
    assert ours.keys() == theirs._AUGMENTATION_SPACE.keys()
    for operation, (make, signed) in theirs._AUGMENTATION_SPACE.items():
        want, table = make(bins, 224, 192), ours[operation]
        assert signed == (operation in SIGNED)
        assert (want is None) == (table is None)
        if table is not None:
            np.testing.assert_allclose(table, want.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_draws_are_uniform():
    tables = policies.trivial_augment_tables(31)
    keys = jax.random.split(KEY, 14000)
    operation, magnitude = Space(tables, 31).draw(keys, 0, 31)
    counts = np.bincount(operation, minlength=14)
    assert np.abs(counts - 1000).max() < 150
    turns = np.asarray(magnitude)[np.asarray(operation) == OPERATIONS.index("Rotate")]
    assert abs((turns > 0).mean() - 0.5) < 0.06
    assert np.unique(np.abs(turns)).size == 31


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "dtype"),
    [
        (ops.TrivialAugment(), "uint8"),
        pytest.param(ops.RandAugment(), "uint8", marks=pytest.mark.slow),
        pytest.param(ops.AugMix(), "float32", marks=pytest.mark.slow),
    ],
    ids=lambda x: type(x).__name__,
)
def test_any_mesh_and_layout(policy, dtype):
    images = pictures(8, dtype)
    run = jax.jit(lambda images: ops.augment(KEY, images, (policy,)).images)
    plain = run(images)
    assert plain.dtype == images.dtype and (np.asarray(plain) != np.asarray(images)).any()
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(images, NamedSharding(mesh, P("data")))
    compiled = run.lower(placed).compile()
    text = compiled.as_text() or ""
    assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "permute"))
    on_planes = jax.jit(lambda x: ops.augment(KEY, x, (policy,), axes=(-2, -1)).images)
    planes = on_planes(jnp.moveaxis(images, -1, 1))
    explicit = NamedSharding(jax.make_mesh((8,), ("data",)), P("data"))
    on_explicit = run(jax.device_put(images, explicit))
    assert on_explicit.sharding.is_equivalent_to(explicit, images.ndim)
    for result in (compiled(placed), on_explicit, jnp.moveaxis(planes, 1, -1)):
        off = np.abs(np.asarray(result, np.float64) - np.asarray(plain, np.float64))
        if dtype == "uint8":
            assert off.max() <= 1
        else:
            # A level of 1/256 may be the next one in `equalize`, and a neighbour's in `posterize`.
            assert np.quantile(off, 0.99) < 1e-5


def test_masks_boxes_and_points_move_along():
    policy = (ops.RandAugment(num_ops=3, magnitude=15),)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    places = (1 + x + 100 * y)[..., None].astype(np.float32)
    masks = np.broadcast_to(places, (64, *places.shape))
    points = np.broadcast_to([[10.5, 8.5], [15.5, 11.5]], (64, 2, 2)).astype(np.float32)
    run = jax.jit(lambda x, m, p: ops.augment(KEY, x, policy, masks=m, points=p))
    out = run(pictures(64), masks, points)
    assert out.masks is not None and out.points is not None
    seen = 0
    for mask, places in zip(np.asarray(out.masks)[..., 0], np.asarray(out.points), strict=True):
        for (column, row), start in zip(np.floor(places).astype(int), points[0], strict=True):
            if 0 <= row < HEIGHT and 0 <= column < WIDTH and mask[row, column]:
                seen += 1
                shown = mask[row, column] % 100, mask[row, column] // 100 + 0.5
                # Three nearest pixels, each half a pixel off at most.
                assert np.abs(np.array(shown) - start).max() <= 3
    assert seen > 64


@pytest.mark.slow
def test_augmix_blends_with_weights_of_sum_one():
    """Black stays black; of the first step of every table other pictures change little."""
    images = pictures(16, "float32").at[8:].set(0)
    policy = (ops.AugMix(severity=1, chain_depth=1),)
    out = jax.jit(lambda x: ops.augment(KEY, x, policy).images)(images)
    np.testing.assert_allclose(out[8:], 0, atol=1e-6)
    assert 1e-3 < np.abs(out[:8] - images[:8]).mean() < 0.15


IMAGES = np.zeros((2, 8, 9, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(ops.RandAugment, num_ops=0), "num_ops must be an integer of at least 1"),
        (partial(ops.RandAugment, magnitude=31), "magnitude must be 0 to 30, got 31"),
        (partial(ops.TrivialAugment, method="area"), "unknown method"),
        (partial(ops.AugMix, severity=11), "severity must be 1 to 10, got 11"),
        (partial(ops.AugMix, chain_depth=0), "chain_depth must be an integer"),
        (partial(ops.augment, KEY, IMAGES, (ops.AugMix(),), masks=IMAGES), "leave masks"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
