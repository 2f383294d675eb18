"""Ahead-of-time compilation: the report against closed forms, and what the training step sends.

Needs libtpu (`pip install -e '.[aot]'`), but no TPU.
"""

import dataclasses
import functools
import importlib.util
import re
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from torch import nn
from torch.nn import functional as F

from jaxsr.data.transforms import make_preparation
from jaxsr.interop import mesh as meshes
from jaxsr.interop.aot.compile import abstract, compile_ahead, readable
from jaxsr.interop.aot.hlo import Collective
from jaxsr.interop.aot.report import advice, as_json, show
from jaxsr.interop.aot.search import largest_batch
from jaxsr.interop.aot.topology import load_topology
from jaxsr.interop.aot.traffic import main_memory_bytes
from jaxsr.interop.folding.policy import LaneFolding
from jaxsr.interop.module import to_jax
from jaxsr.interop.train.objective import Objective, Phase, Player
from jaxsr.interop.train.step import StepConfig, TrainStep, convert, init_state
from jaxsr.runtime.options import AotOptions

if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed: pip install -e '.[aot]'", allow_module_level=True)


@pytest.fixture(scope="module")
def four():
    """Four chips and a mesh over them."""
    topology = load_topology("v5e:2x2")
    return topology, meshes.make_mesh(4, topology.devices)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "chips", "devices"),
    [
        ("v4:2x2x1", 4, 4),
        ("v5e:2x4", 8, 8),
        ("v5p:2x2x2", 8, 8),
        ("v6e:16x16", 256, 256),
        ("tpu7x:2x2x1", 4, 8),  # two cores a chip, each a device
    ],
)
def test_topologies_and_the_compilers_own_memory_limit(name, chips, devices):
    topology = load_topology(name)
    assert (topology.chips, len(topology.devices)) == (chips, devices)
    # The compiler states the limit when a program exceeds it: a terabyte does on every chip.
    one = SingleDeviceSharding(topology.devices[0])
    huge = jax.ShapeDtypeStruct((2**18, 2**20), jnp.float32, sharding=one)
    with pytest.raises(jax.errors.JaxRuntimeError) as refused:
        jax.jit(lambda x: x + 1).lower(huge).compile()
    stated = re.search(r"exceeds available HBM \(([\d.]+)G\)", str(refused.value))
    assert stated, refused.value
    assert topology.device.memory_bytes / 2**30 == pytest.approx(float(stated[1]), abs=0.005)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v9:2x2", "no topology 'v9:2x2'; write a TPU as CHIP:SIZE"),
        ("v5e", "no topology 'v5e'"),
        ("v5e:two", "no TPU topology"),
        ("v5e:²x4", "no TPU topology"),
        (f"v5e:1x{'9' * 5000}", "no TPU topology"),
        ("v5e:32x32", "topology v5e:32x32 has 1024 chips; choose 1 to 256"),
        ("v5e:3x3", "libtpu has no topology 'v5e:3x3'"),
    ],
)
def test_unknown_topologies(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_topology(name)


def test_libtpu_is_missing(monkeypatch):
    """JAX's own message for this does not name libtpu."""

    def refuse(*_, **__):
        raise RuntimeError("JAX TPU support not installed; cannot generate TPU topology.")

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(
        ValueError, match=r"needs libtpu, .* not installed; pip install -e '.\[aot\]'"
    ):
        load_topology("v5e:2x4")


def test_report_of_a_product_against_arithmetic(four):
    topology, _ = four
    one = SingleDeviceSharding(topology.devices[0])
    m, k, n = 1024, 512, 256
    inputs = abstract((jnp.zeros((m, k)), jnp.zeros((k, n))), one)
    ahead = compile_ahead(jax.jit(jnp.matmul), inputs, topology, name="product")
    assert ahead.compiles and ahead.memory is not None
    assert ahead.flops == pytest.approx(2 * m * k * n, rel=0.01)
    assert ahead.memory.arguments == 4 * (m * k + k * n)  # all sizes are whole tiles
    assert ahead.memory.outputs == 4 * m * n
    assert ahead.bytes >= 4 * (m * k + k * n + m * n)
    assert ahead.products == {"f32": 1} and ahead.collectives == []
    assert ahead.padding.factor == pytest.approx(1, abs=0.01)
    estimate = ahead.roofline
    assert estimate.compute_s == pytest.approx(
        2 * m * k * n / 197e12, rel=0.02
    )  # v5e's 197 Tflop/s
    assert estimate.bound == "memory"
    with jax.default_matmul_precision("highest"):
        exact = compile_ahead(jax.jit(lambda a, b: a @ b), inputs, topology, name="six passes")
    assert exact.products == {"f32 highest": 1}
    assert exact.roofline.compute_s > 5 * estimate.compute_s


def test_main_memory_traffic_against_arithmetic(four):
    topology, _ = four
    one = SingleDeviceSharding(topology.devices[0])
    m, k, n = 1024, 512, 256
    inputs = abstract((jnp.zeros((2 * m, k)), jnp.zeros((k, n))), one)
    program = jax.jit(lambda a, b: jax.nn.relu(a[m:] @ b)).lower(*inputs).compile().as_text()
    # Half of the first array is read, and what lies between the two steps is never written.
    assert program is not None
    assert main_memory_bytes(program) == 4 * (m * k + k * n + m * n)


def test_a_grouped_product_counts_each_row_once(four):
    topology, mesh = four
    groups, rows, inner, outer = 16, 256, 128, 384

    def both_gradients(a, b, sizes):
        def loss(a, b):
            return jax.lax.ragged_dot(a, b, sizes).astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1))(a, b)

    shapes = (
        jax.ShapeDtypeStruct((rows, inner), jnp.bfloat16),
        jax.ShapeDtypeStruct((groups, inner, outer), jnp.bfloat16),
        jax.ShapeDtypeStruct((groups,), jnp.int32),
    )
    arguments = abstract(shapes, meshes.replicated(mesh))
    ahead = compile_ahead(jax.jit(both_gradients), arguments, topology, name="experts")
    products = 2 * 2 * rows * inner * outer
    assert products <= ahead.flops < 1.2 * products  # and the rows' groups are found


def test_a_program_that_cannot_be_read_is_reported_without_its_counts(four, monkeypatch):
    # As libtpu's programs for v6e, where they hold asynchronous updates.
    topology, mesh = four

    def fails(self):
        raise jax.errors.JaxRuntimeError("INTERNAL: RET_CHECK failure async-update")

    monkeypatch.setattr(jax.stages.Compiled, "as_text", fails)
    argument = abstract(jnp.zeros((8, 8)), meshes.replicated(mesh))
    ahead = compile_ahead(jax.jit(lambda x: x @ x), (argument,), topology, name="product")
    assert ahead.compiles and ahead.flops
    assert ahead.memory is not None
    assert any("jaxlib cannot read the program" in line for line in advice(ahead))
    assert not as_json(ahead)["program_is_read"]


def test_padding_is_seen(four):
    topology, _ = four
    one = SingleDeviceSharding(topology.devices[0])
    # 1000 rows of 3: two tiles of 128 lanes cannot be filled whichever axis comes last.
    narrow = jax.ShapeDtypeStruct((64, 40, 40, 3), jnp.float32, sharding=one)
    kernel = jax.ShapeDtypeStruct((3, 3, 3, 3), jnp.float32, sharding=one)

    def convolve(x, w):
        dimensions = ("NHWC", "HWIO", "NHWC")
        for _ in range(2):
            x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dimensions)
        return x

    ahead = compile_ahead(jax.jit(convolve), (narrow, kernel), topology, name="narrow")
    assert ahead.padding.factor > 1.5
    assert any("128 lanes" in line for line in advice(ahead))


def test_batch_norm_is_not_blamed_where_parameters_are_split(four):
    topology, _ = four
    one = SingleDeviceSharding(topology.devices[0])
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=one)
    ahead = compile_ahead(jax.jit(lambda x: x + 1), (x,), topology, name="step", training=True)
    reduces = [Collective("all-reduce", 4, ("f32",), 4)] * 12
    gathers = [Collective("all-gather", 4, ("f32",), 4)]
    for communication, blamed in ((reduces, True), (reduces + gathers, False)):
        said = advice(dataclasses.replace(ahead, collectives=communication))
        assert any("--batch-norm local" in line for line in said) is blamed


def test_collectives_against_arithmetic(four):
    topology, mesh = four
    axes = meshes.DATA_AXES
    rows = PartitionSpec(axes)

    def talk(x):
        summed = jax.lax.psum(x, axes)
        gathered = jax.lax.all_gather(summed * x, axes, tiled=True)
        scattered = jax.lax.psum_scatter(gathered**2, axes, tiled=True)
        return scattered + x

    function = jax.jit(jax.shard_map(talk, mesh=mesh, in_specs=rows, out_specs=rows))
    x = jax.ShapeDtypeStruct((4 * 256, 256), jnp.float32, sharding=NamedSharding(mesh, rows))
    ahead = compile_ahead(function, (x,), topology, name="talk")
    part = 256 * 256 * 4
    by_kind = ahead.by_kind
    assert by_kind["all-reduce"] == (1, part)
    assert by_kind["all-gather"] == (1, 4 * part)
    assert by_kind["reduce-scatter"] == (1, 4 * part)
    assert {c.devices for c in ahead.collectives} == {4}


def test_a_program_too_large_is_one_readable_line(four, capsys):
    topology, _ = four
    one = SingleDeviceSharding(topology.devices[0])
    huge = jax.ShapeDtypeStruct((2**18, 2**20), jnp.float32, sharding=one)
    ahead = compile_ahead(jax.jit(lambda x: x + 1), (huge,), topology, name="huge")
    assert not ahead.compiles and ahead.memory is None
    error = str(ahead.error)
    assert error.startswith("out of memory") and "15.75G" in error and "smaller batch" in error
    assert "\n" not in error and as_json(ahead)["error"] == error
    show([ahead])
    assert "out of memory" in capsys.readouterr().out


def test_other_refusals_stay_readable():
    text = "INTERNAL: the thing\nis bad.\n=== Source Location Trace: ===\nlearning/x.cc:1"
    assert readable(RuntimeError(text)) == "the compiler refuses it: INTERNAL: the thing is bad."


@pytest.mark.parametrize(("limit", "start"), [(1000, 8), (1000, 640), (20, 64), (5, 8), (8, 8)])
def test_largest_batch_equals_the_largest_of_all(limit, start):
    tried = []

    def compile_at(batch) -> Any:
        tried.append(batch)
        fits = batch <= limit
        memory = SimpleNamespace(total=100 + 7 * batch, available=100 + 7 * limit)
        return SimpleNamespace(compiles=fits, memory=memory if fits else None)

    batch, trials = largest_batch(compile_at, compile_at(start), batch=start, step=8, precision=0)
    assert batch == (limit // 8 * 8 or None)
    assert len(tried) == len(set(tried)) <= 8 and len(trials) == len(tried)


# ---- the training step


class Small(Objective):
    """Two networks and BatchNorm, as a GAN has them."""

    phases = (
        Phase(
            name="fit",
            players=(
                Player(network="first", loss="far"),
                Player(network="second", loss="near", through_shared=False),
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3))
        self.second = nn.Sequential(nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 1, 3))

    def share(self, batch):
        return {"out": self.first(batch["image"])}

    def far(self, shared, batch):
        return F.mse_loss(self.second(shared["out"]), batch["image"][:, :1, 4:-4, 4:-4]), {}

    def near(self, shared, batch):
        return self.second(shared["out"]).square().mean(), {}


def compiled_step(topology, shape="4", **options):
    """The report of a step, and how many parameters it learns: each is compiled once."""
    return _compiled_step(topology.name, shape, StepConfig(**options))


@functools.cache
def _compiled_step(name, shape, config):
    torch.manual_seed(0)
    topology = load_topology(name)
    mesh = meshes.make_mesh(meshes.MeshShape.parse(shape), topology.devices)
    objective = Small()
    model = convert(objective, config, model_devices=meshes.model_devices(mesh))
    optimizers = {name: optax.adam(1e-3) for name in ("first", "second")}
    step = TrainStep(
        model, objective.phases[0], optimizers, prepare=lambda b, _: b, mesh=mesh, config=config
    )

    def initial():
        return init_state(model, optimizers, exported="first", seed=0, ema=False)

    state = jax.eval_shape(initial)
    shardings = meshes.tree_shardings(state, mesh)
    rows = 4 * len(mesh.devices.flat)  # as many on every device, however many there are
    image = {"image": jax.ShapeDtypeStruct((rows, 3, 16, 16), jnp.float32)}
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, meshes.replicated(mesh)))
    arguments = abstract(state, shardings), abstract(image, meshes.batch_sharding(mesh))
    ahead = compile_ahead(jitted, arguments, topology, name="step", training=True)
    assert ahead.compiles, ahead.error
    return ahead, sum(p.numel() for p in objective.parameters())


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_local_steps_send_the_gradients_once_in_float32(four, dtype):
    ahead, learned = compiled_step(four[0], batch_norm="local", dtype=dtype)
    count, size = ahead.by_kind["all-reduce"]
    assert count <= 4
    statistics, losses = 2 * (16 + 8) * 2, 2 * 2  # both players average them
    assert 4 * learned <= size <= 4 * (learned + statistics + losses)
    assert set(ahead.by_kind) == {"all-reduce"}  # nothing is gathered
    assert {c.dtypes for c in ahead.collectives} == {("f32",)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("bicubic", ["torch", "matlab"])
def test_preparing_a_batch_sends_nothing_and_multiplies_levels(four, bicubic):
    topology, mesh = four
    prepare = make_preparation(crop=32, scale=4, bicubic=bicubic)
    batch = {
        "image": jax.ShapeDtypeStruct((16, 32, 32, 3), jnp.uint8),
        "sample": jax.ShapeDtypeStruct((16,), jnp.int32),
    }
    split = abstract(batch, meshes.batch_sharding(mesh))
    run = jax.jit(
        lambda batch: prepare(batch, jax.random.key(0)), out_shardings=meshes.batch_sharding(mesh)
    )
    ahead = compile_ahead(run, [split], topology, name="preparation")
    assert ahead.compiles, ahead.error
    assert not ahead.collectives
    assert ahead.products == {"bf16": 4}  # two axes, two digits each


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_summed_in_float32_with_statistics_of_the_whole_batch(four, dtype):
    ahead, learned = compiled_step(four[0], batch_norm="global", dtype=dtype)
    assert {d for c in ahead.collectives for d in c.dtypes} == {"f32"}
    assert sum(c.bytes for c in ahead.collectives if c.kind == "all-reduce") >= 4 * learned


@pytest.mark.parametrize("batch_norm", ["local", pytest.param("global", marks=pytest.mark.slow)])
def test_more_chips_do_not_make_a_chip_work_or_send_more(four, batch_norm):
    small, _ = compiled_step(four[0], batch_norm=batch_norm)
    large, _ = compiled_step(load_topology("v5e:4x4"), "16", batch_norm=batch_norm)
    assert large.flops == pytest.approx(small.flops, rel=0.01)
    assert large.bytes == pytest.approx(small.bytes, rel=0.02)
    assert large.by_kind == small.by_kind


def test_sharded_state_is_smaller_on_every_device(four):
    plain, learned = compiled_step(four[0])
    split, _ = compiled_step(four[0], "data=1,fsdp=4")
    assert plain.memory is not None and split.memory is not None
    # Adam's two moments and the parameters of the convolutions, but for the small ones.
    assert split.memory.arguments < plain.memory.arguments
    assert np.prod((16, 16, 3, 3)) > learned / 3


def test_options_need_a_topology():
    with pytest.raises(ValueError, match="aot_largest needs aot, the devices"):
        AotOptions(aot_largest=True)


class Peaks(nn.Module):
    """Peaks of a product, for which bfloat16 has fewer digits than its float32."""

    def __init__(self, peak) -> None:
        super().__init__()
        self.conv, self.peak = nn.Conv2d(8, 8, 3, padding=1, bias=False), peak

    def forward(self, x):
        scale = x[:, :, :1, :1]
        y = self.conv(x)
        return self.peak(y * scale, y + scale)


PEAKS = {
    "amax over channels": lambda x, y: x.amax(1, keepdim=True),
    "amax over pixels": lambda x, y: x.amax((2, 3)),
    "norm": lambda x, y: torch.linalg.vector_norm(x, torch.inf, 1),
    "maximum": torch.maximum,
}


FOLDED = LaneFolding({8: 8}, fewest_lanes=16)


@pytest.mark.parametrize(
    ("peak", "folding"),
    [
        pytest.param(
            peak,
            folding,
            marks=[] if (name, folding) == ("amax over channels", FOLDED) else pytest.mark.slow,
            id=f"{name}{', folded' if folding else ''}",
        )
        for name, peak in PEAKS.items()
        for folding in (None, FOLDED)
    ],
)
def test_the_gradient_of_a_maximum_compares_rounded_values(four, peak, folding):
    # A maximum is rounded when it is written. Where the product is made again for the comparison,
    # it is not, by default: none would be the largest, and the gradient zero, or divided by zero.
    model = to_jax(Peaks(peak), lane_folding=folding, compute_dtype=jnp.bfloat16)
    one = SingleDeviceSharding(four[0].devices[0])

    def loss(x):
        out = model.apply(model.params, model.buffers, x)[0]
        return jnp.square(out.astype(jnp.float32)).sum()

    x = jax.ShapeDtypeStruct((8, 8, 256, 256), jnp.bfloat16, sharding=one)
    text = jax.jit(jax.grad(loss)).lower(x).compile().as_text() or ""
    made = {m[1]: (m[2], m[3]) for m in re.finditer(r"%([\w.-]+) = \S+ ([\w-]+)\(%([\w.-]+)", text)}

    def origin(name):
        operation, source = made.get(name, ("parameter", ""))
        return origin(source) if operation in ("bitcast", "copy", "transpose") else operation

    pairs = re.findall(r"compare\(%([\w.-]+), %([\w.-]+)\), direction=EQ", text)
    compared = [{origin(side) for side in pair} for pair in pairs]
    assert any("reduce-precision" in sides for sides in compared)
    for unrounded in ("multiply", "add"):
        assert {unrounded, "convert"} not in compared
