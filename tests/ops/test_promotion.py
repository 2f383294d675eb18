"""Settings of JAX that a caller's project may have turned on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsr import ops
from tests.ops.test_every_function import FUNCTIONS, WITH_ARGUMENTS, in_float, pictures

SETTINGS = {
    "strict dtypes": lambda: jax.numpy_dtype_promotion("strict"),
    "strict ranks": lambda: jax.numpy_rank_promotion("raise"),
    "float64": lambda: jax.enable_x64(True),
}
POLICIES = [
    ops.RandomBlur(), ops.RandomMotionBlur(), ops.RandomNoise(), ops.RandomJPEG(),
    ops.ColorJitter(), ops.RandomAffine(), ops.RandomPerspective(), ops.ElasticTransform(),
    ops.RandAugment(),
]  # fmt: skip


def case(name):
    if name in FUNCTIONS:
        function, dtypes = FUNCTIONS[name]
        return function, (pictures(dtypes[0], 2),)
    function, arrays = WITH_ARGUMENTS[name]
    return function, tuple(jnp.asarray(array[:2]) for array in arrays)


@pytest.mark.sample(6)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", [*FUNCTIONS, *WITH_ARGUMENTS])
def test_settings_of_the_caller_make_no_difference(name, setting):
    function, arrays = case(name)
    expected = jax.tree.leaves(function(*arrays))

    def total(*arrays):
        return sum(jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(function(*arrays)))

    with SETTINGS[setting]():
        got = jax.tree.leaves(function(*arrays))
        if jnp.issubdtype(arrays[0].dtype, jnp.floating):
            jax.jit(jax.grad(total)).lower(*arrays)
    for x, y in zip(got, expected, strict=True):
        if setting != "float64":
            assert x.dtype == y.dtype
        atol = 1e-4 * max(1, np.abs(in_float(y)).max()) if x.dtype.kind != "u" else 1
        np.testing.assert_allclose(in_float(x), in_float(y), atol=atol)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_augmentation_with_float64(policy):
    images = np.random.default_rng(0).random((2, 24, 32, 3)).astype(np.float32)
    with jax.enable_x64(True):
        shapes = jax.eval_shape(lambda key: ops.augment(key, images, [policy]), jax.random.key(0))
    assert jax.tree.leaves(shapes)[0].dtype == np.float32


@pytest.mark.sample(1)
@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.2])
def test_gamma_has_a_slope_everywhere(gamma):
    """Values below 0 count as 0, where torchvision's power of a clipped image has no slope."""
    x = jnp.array([[[-0.5, 0.0, 0.25, 1.0, jnp.nan]]])
    slope = jax.grad(lambda x: ops.adjust_gamma(x, gamma)[..., :4].sum())(x)[0, 0]
    np.testing.assert_allclose(slope[2:4], gamma * np.array([0.25, 1]) ** (gamma - 1), rtol=1e-5)
    np.testing.assert_array_equal(slope[:2], [0, 0])
    assert np.isnan(ops.adjust_gamma(x, gamma)[0, 0, 4])
    exponent = jax.grad(lambda gamma: ops.adjust_gamma(x[..., :4], gamma).sum())(gamma)
    np.testing.assert_allclose(exponent, 0.25**gamma * np.log(0.25), rtol=1e-5)
