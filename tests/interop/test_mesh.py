"""Meshes, platforms and where arrays are put."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxsr.errors import DeviceError
from jaxsr.interop.mesh import (
    batch_sharding,
    make_mesh,
    parameter_sharding,
    place,
    place_batch,
    replicated,
    select_platform,
)
from jaxsr.interop.mesh_shape import MeshShape


@pytest.mark.parametrize(
    ("text", "data", "fsdp"),
    [("8", 8, 1), (8, 8, 1), ("data=4,fsdp=2", 4, 2), ("fsdp=2", 1, 2), (" data = 2 ", 2, 1)],
)
def test_parse(text, data, fsdp):
    shape = MeshShape.parse(text)
    assert (shape.data, shape.fsdp, shape.devices) == (data, fsdp, data * fsdp)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "mesh axis data must be at least 1, got 0"),
        ("-1", "mesh axis data must be at least 1, got -1"),
        ("data=4,fsdp=0", "mesh axis fsdp must be at least 1, got 0"),
        ("eight", "mesh 'eight' is neither a number"),
        ("data=2,data=2", "is neither"),
        ("model=2", "is neither"),
        ("tensor=0", "mesh axis tensor must be at least 1, got 0"),
        ("2x2", "is neither"),
        ("", "is neither"),
    ],
)
def test_parse_refuses(text, message):
    with pytest.raises(ValueError, match=message):
        MeshShape.parse(text)


def test_too_few_devices_says_how_many_there_are():
    with pytest.raises(DeviceError, match=r"mesh of 99 devices .* has 8 cpu device\(s\); use"):
        make_mesh(99)


def test_unknown_and_absent_platforms():
    with pytest.raises(ValueError, match="platform must be one of auto, tpu, cuda, cpu, got 'npu'"):
        select_platform("npu")


@pytest.mark.parametrize("platform", ["tpu", pytest.param("cuda", marks=pytest.mark.slow)])
def test_a_platform_that_is_not_there_is_one_line_and_status_2(platform, tmp_path):
    # A process of its own: JAX chooses its platform once.
    command = [sys.executable, "-m", "jaxsr.train", "--platform", platform]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    if done.returncode == 0:
        pytest.skip(f"this machine has a {platform}")
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("jaxsr: ")]
    assert len(lines) == 1 and f"platform '{platform}' is not usable here" in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("platform", "variable", "advice"),
    [
        ("auto", "tpu", "JAX_PLATFORMS=tpu asks for it: unset that, or use --platform cpu"),
        ("auto", None, "Use --platform cpu"),
        ("cuda", None, "install the extra for it: pip install -e '.[cuda]'"),
    ],
)
def test_the_advice_for_a_missing_platform_can_be_followed(monkeypatch, platform, variable, advice):
    def fail():
        raise RuntimeError("Unable to initialize backend")

    monkeypatch.setattr(jax, "default_backend", fail)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if variable is not None:
        monkeypatch.setenv("JAX_PLATFORMS", variable)
    with pytest.raises(DeviceError) as raised:
        select_platform(platform)
    assert str(raised.value).endswith(advice) and "[auto]" not in str(raised.value)


def test_batches_are_split_and_constants_are_not():
    mesh = make_mesh(MeshShape(data=4, fsdp=2))
    rows = np.arange(16.0).reshape(16, 1)
    placed = place_batch({"x": rows}, mesh)["x"]
    assert placed.sharding == batch_sharding(mesh)
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 1)}
    np.testing.assert_array_equal(placed, rows)
    placed = place(rows, replicated(mesh))
    assert {shard.data.shape for shard in placed.addressable_shards} == {(16, 1)}


def test_large_parameters_are_split_over_fsdp_along_their_longest_axis():
    mesh = make_mesh(MeshShape(data=2, fsdp=4))
    assert parameter_sharding(np.zeros((3, 64, 32)), mesh).spec == PartitionSpec(None, "fsdp")
    assert parameter_sharding(np.zeros((33, 63)), mesh).is_fully_replicated  # nothing divides
    assert parameter_sharding(np.zeros((8,)), mesh).is_fully_replicated  # too small to matter
    assert parameter_sharding(np.zeros((64, 64)), make_mesh(8)).is_fully_replicated


def test_place_keeps_values_and_dtypes():
    mesh = make_mesh(8)
    tree = {"a": jnp.arange(3), "b": np.float32(2.5), "c": jnp.ones((2,), jnp.bfloat16)}
    placed = place(tree, jax.tree.map(lambda _: replicated(mesh), tree))
    assert jax.tree.map(lambda x: x.dtype, placed) == jax.tree.map(lambda x: x.dtype, tree)
    jax.tree.map(np.testing.assert_array_equal, placed, tree)


def test_three_axes():
    shape = MeshShape.parse("data=2,fsdp=2,tensor=2")
    assert (shape.devices, shape.row_devices) == (8, 4)
    mesh = make_mesh(shape)
    weight = np.zeros((64, 96))
    assert parameter_sharding(weight, mesh, tensor=0).spec == PartitionSpec("tensor", "fsdp")
    assert parameter_sharding(weight, mesh, tensor=1).spec == PartitionSpec("fsdp", "tensor")
    assert parameter_sharding(np.zeros((33, 64)), mesh, tensor=0).spec == PartitionSpec(
        None, "fsdp"
    )
    rows = place_batch({"x": np.zeros((8, 3), np.float32)}, mesh)["x"]
    assert {shard.data.shape for shard in rows.addressable_shards} == {(2, 3)}
