"""Small arrays as one vector: what is packed where, and that nothing changes by it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxsr.interop.mesh import MeshShape, make_mesh
from jaxsr.interop.train.optimizers import Elementwise, OptimizerConfig, make_optimizer
from jaxsr.interop.train.packing import Packed, Packing, norm

SHAPES = {"kernel": (200, 100), "bias": (100,), "scale": (), "taps": (3, 2, 4)}


def _tree(seed):
    rng = np.random.default_rng(seed)
    tree = {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in SHAPES.items()}
    return {**tree, "count": jnp.int32(7), "half": jnp.ones(3, jnp.bfloat16)}


def test_small_float32_arrays_lie_in_the_vector():
    tree = _tree(0)
    packed = Packing.of(tree, make_mesh(1)).pack(tree)
    assert isinstance(packed, Packed)
    assert packed.vector.shape == (100 + 1 + 24,)
    assert sorted(leaf.size for leaf in packed.others) == [1, 3, 20000]


@pytest.mark.parametrize("devices", [1, 8])
def test_unpacking_gives_the_tree_back(devices):
    mesh = make_mesh(devices)
    tree = jax.device_put(_tree(0), NamedSharding(mesh, PartitionSpec()))
    packing = Packing.of(tree, mesh)
    nested = {"params": tree, "moments": (tree, {"step": jnp.int32(1)})}
    result = jax.jit(lambda nested: packing.unpack(packing.pack(nested)))(nested)
    assert jax.tree.structure(result) == jax.tree.structure(nested)
    jax.tree.map(np.testing.assert_array_equal, result, nested)


@pytest.mark.sample(2)
@pytest.mark.parametrize("rule", ["adam", "adamw", "sgd", "adagrad"])
def test_optimizers_take_the_same_steps(rule):
    config = OptimizerConfig(
        optimizer=rule, lr=0.1, weight_decay=0.01, clip_norm=0.5, momentum=0.9 * (rule == "sgd")
    )
    params, *gradients = ({name: _tree(seed)[name] for name in SHAPES} for seed in range(4))
    packing = Packing.of(params, make_mesh(1))

    def trained(config, gradients, pack=lambda tree: tree):
        optimizer = make_optimizer(config, 10)
        assert isinstance(optimizer, Elementwise)
        result = pack((params, optimizer.init(params)))

        @jax.jit
        def step(params, state, gradients):
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        for each in gradients:
            result = step(*result, pack(each))
        return result

    packed = packing.unpack(trained(config, gradients, packing.pack))
    assert jax.tree.structure(packed[0]) == jax.tree.structure(params)
    # Clipped here: XLA's own norm of 20,000 float32 numbers is less exact than the packed one.
    clipped = [
        {n: g * np.float32(0.5 / _norm(each)) for n, g in each.items()} for each in gradients
    ]
    separate = trained(dataclasses.replace(config, clip_norm=None), clipped)
    for a, b in zip(jax.tree.leaves(packed), jax.tree.leaves(separate), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-7)


def _norm(tree):
    """In float64."""
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in tree.values()]
    return np.linalg.norm(np.concatenate(leaves))


def test_norm_of_all_elements():
    tree = _tree(0) | {"large": jnp.linspace(-3, 5, 100_003)}
    packing = Packing.of(tree, make_mesh(1))
    packed_norm = jax.jit(lambda tree: norm(packing.pack(tree)))
    np.testing.assert_allclose(packed_norm(tree), _norm(tree), rtol=1e-6)
    np.testing.assert_allclose(norm(tree), _norm(tree), rtol=1e-5)
    for bad in (jnp.inf, jnp.nan, 1e30):
        assert not jnp.isfinite(packed_norm(tree | {"scale": jnp.float32(bad)}))


def test_other_optimizers_and_split_parameters_are_not_packed():
    factors = make_optimizer(OptimizerConfig(), 10, lr_factors={"bias": 0.1})
    assert not isinstance(factors, Elementwise)
    assert not isinstance(optax.adam(1e-3), Elementwise)
    split = make_mesh(MeshShape(data=4, fsdp=2))
    assert Packing.of(_tree(0), split).pack(_tree(0)).keys() == _tree(0).keys()


def test_xlas_kernels_alone_pack_nothing(monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    tree = _tree(0)
    assert Packing.of(tree, make_mesh(1)).pack(tree) is tree
