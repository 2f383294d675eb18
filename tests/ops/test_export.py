"""Programs that `jax.export` keeps, for batches of any extent."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import export

from jaxsr import ops
from tests.ops.test_every_function import FUNCTIONS, WITH_ARGUMENTS, in_float
from tests.ops.test_promotion import case


@pytest.mark.usefixtures("unchecked_types")  # sizes that are symbols are not integers
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [*FUNCTIONS, *WITH_ARGUMENTS])
def test_a_symbolic_batch(name):
    function, arrays = case(name)
    (batch,) = export.symbolic_shape("b")
    shapes = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in arrays]

    def leaves(*arrays):  # tuples with names have to be registered
        return jax.tree.leaves(function(*arrays))

    kept = export.export(jax.jit(leaves))(*shapes).serialize()
    three = tuple(np.concatenate([x, x[:1]]) for x in arrays)
    results = export.deserialize(kept).call(*three)
    # The process's own kernels round otherwise: a level at ties, and 1e-5 of floats.
    for got, want in zip(*map(jax.tree.leaves, (results, function(*three))), strict=True):
        atol = 1 if want.dtype.kind == "u" else 1e-5 * max(1, np.abs(in_float(want)).max())
        np.testing.assert_allclose(in_float(got), in_float(want), atol=atol)


@pytest.mark.parametrize("dtype", [">f4", ">u2", ">f8"])
def test_arrays_in_the_other_order_of_bytes(dtype):
    image = (np.random.default_rng(0).random((1, 9, 8, 3)) * 255).astype(dtype)
    native = image.astype(image.dtype.newbyteorder("="))
    for function in (
        ops.flip,
        partial(ops.gaussian_blur, sigma=1.0),
        partial(ops.warp_affine, matrix=np.eye(2, 3, dtype=">f8")),
    ):
        np.testing.assert_array_equal(function(image), function(native))
