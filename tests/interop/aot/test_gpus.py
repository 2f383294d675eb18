"""GPUs ahead of time: the table, the report against arithmetic, what programs send and move.

Needs JAX's CUDA plugin (`pip install -e '.[aot-gpu]'`), but no GPU.
"""

import importlib.util
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from torch import nn

from jaxsr.interop import mesh as meshes
from jaxsr.interop.aot.compile import abstract, compile_ahead
from jaxsr.interop.aot.gpus import GPUS, peak_flops
from jaxsr.interop.aot.report import advice, as_json, show
from jaxsr.interop.aot.topology import load_topology
from jaxsr.interop.folding.policy import choose_folding
from jaxsr.interop.module import to_jax
from jaxsr.runtime.aot import prepare
from jaxsr.runtime.options import AotOptions

if importlib.util.find_spec("jax_cuda13_plugin") is None:
    pytest.skip("JAX's CUDA plugin is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def h100():
    return load_topology("h100:1")


def on_one(topology, *shapes, dtype=jnp.bfloat16):
    one = SingleDeviceSharding(topology.devices[0])
    return [jax.ShapeDtypeStruct(shape, dtype, sharding=one) for shape in shapes]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_compiles(name):
    topology = load_topology(f"{name}:1")
    inputs = on_one(topology, (256, 128), (128, 64))
    ahead = compile_ahead(jax.jit(lambda a, b: a @ b), inputs, topology, name="product")
    assert ahead.compiles and ahead.memory is not None and ahead.gpu is not None
    assert ahead.flops == pytest.approx(2 * 256 * 128 * 64, rel=0.05)
    assert ahead.roofline.seconds > 0 and topology.devices[0].device_kind == GPUS[name].kind


# Of XLA's own descriptions: products of a core in a clock, and the clock of its tensor cores.
@pytest.mark.parametrize(
    ("name", "per_clock", "clock_ghz"),
    [("h100", 4 * 512, 1.8295201), ("h200", 4 * 512, 1.8295201), ("b200", 4 * 1024, 1.8353101)],
)
def test_peak_rates_are_those_of_xlas_descriptions(name, per_clock, clock_ghz):
    gpu = GPUS[name]
    expected = 2 * gpu.cores * per_clock * clock_ghz * 1e9
    assert peak_flops(gpu) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_float32_rates_follow_from_cores_and_clock(gpu):
    expected = 2 * gpu.cores * gpu.float32_units * gpu.clock_ghz * 1e9
    assert gpu.float32_tflops * 1e12 == pytest.approx(expected, rel=0.03)


def test_hosts_and_their_network():
    one, two = load_topology("h100:8"), load_topology("h100:2x4")
    assert len(one.devices) == len(two.devices) == one.chips == 8
    assert {device.process_index for device in one.devices} == {0}
    assert [device.process_index for device in two.devices] == [0] * 4 + [1] * 4
    assert two.device.link_bytes_per_s < one.device.link_bytes_per_s


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100", "no topology 'h100'; write a TPU as CHIP:SIZE"),
        ("h300:8", "or a GPU as NAME:COUNT or NAME:HOSTSxCOUNT (a100, a100-40, h100, "),
        ("h100:", "write h100:8 for 8 GPUs, or h100:2x8 for two hosts with 8 each"),
        ("h100:0", "no GPU topology 'h100:0'"),
        ("h100:²", "no GPU topology 'h100:²'"),
        (f"h100:{'9' * 5000}", "no GPU topology"),
        ("h100:2x2x2", "no GPU topology 'h100:2x2x2'"),
        ("h100:9999", "topology h100:9999 has 9999 GPUs; choose up to 4096"),
    ],
)
def test_unknown_topologies(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_topology(name)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NotImplementedError("topology not implemented"), "did not load when JAX started"),
        (RuntimeError("version"), r"cannot compile for h100:1 here \(version\); its version must"),
    ],
)
def test_plugin_that_does_not_load(error, message, monkeypatch):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    with pytest.raises(ValueError, match=message):
        load_topology("h100:1")


def test_plugin_is_missing(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no such platform")

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed; pip install -e '.\[aot-gpu\]'"):
        load_topology("h100:1")


# ---- the report against arithmetic


@pytest.mark.sample(2)
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_and_both_gradients_against_arithmetic(h100, groups, stride):
    n, c, k, side, window = 8, 64, 32, 56, 3
    x, w = on_one(h100, (n, c, side, side), (k, c // groups, window, window))

    def loss(x, w):
        y = jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", feature_group_count=groups,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )  # fmt: skip
        return (y.astype(jnp.float32) ** 2).sum()

    ahead = compile_ahead(jax.jit(jax.grad(loss, (0, 1))), [x, w], h100, name="convolution")
    assert ahead.compiles and ahead.gpu is not None
    once = 2 * n * k * (side // stride) ** 2 * (c // groups) * window**2
    # XLA has no input gradient of a strided grouped convolution: it convolves a gradient that is
    # dilated by the strides.
    dilated = "convBackwardInput" not in ahead.text
    times = 2 + stride**2 if dilated else 3
    assert ahead.gpu.kernels["cuDNN"] == 3 and dilated == (groups > 1)
    assert ahead.flops == pytest.approx(times * once, rel=0.05)
    arrays = 2 * (math.prod(x.shape) + math.prod(w.shape))
    assert ahead.bytes > 2 * arrays


def test_products_without_tf32_take_longer_at_peak(h100):
    def report(precision):
        with jax.default_matmul_precision(precision):
            function = jax.jit(lambda a, b: a @ b)
            inputs = on_one(h100, (4096, 4096), (4096, 4096), dtype=jnp.float32)
            return compile_ahead(function, inputs, h100, name=precision)

    default, highest = report("default"), report("highest")
    ratio = highest.roofline.compute_s / default.roofline.compute_s
    assert ratio == pytest.approx(494.7 / 66.9, rel=0.01)
    assert "float32 arithmetic without TF32" in advice(highest)[0]


def test_a_program_that_does_not_fit_is_refused(h100, monkeypatch, capsys):
    inputs = on_one(h100, (2**35,), dtype=jnp.uint8)
    twice = jax.jit(lambda x: x + x[::-1])
    ahead = compile_ahead(twice, inputs, h100, name="large")
    assert ahead.error is not None and not ahead.compiles
    assert re.fullmatch(r"out of memory: it needs 6\d\.\d\d GiB of the 59\.33 .*", ahead.error)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    larger = load_topology("h100:1")
    assert compile_ahead(
        twice, on_one(larger, (2**35,), dtype=jnp.uint8), larger, name="l"
    ).compiles
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "most")
    with pytest.raises(ValueError, match=r"MEM_FRACTION must lie in \(0, 1\], got 'most'"):
        load_topology("h100:1")
    show([ahead])
    assert "out of memory" in capsys.readouterr().out
    assert as_json(ahead)["error"] == ahead.error


# ---- what jaxsr's programs send and move


class Block(nn.Module):
    """As torch writes it: channels first, statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        layers = []
        for _ in range(4):
            layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.PReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["h100:4", "b200:4", "a100:4", "l4:4"])
def test_a_training_step_transposes_no_image_and_sends_one_sum(name):
    topology = load_topology(name)
    mesh = meshes.make_mesh(4, topology.devices)
    folding = choose_folding("auto", topology.devices[0])
    module = to_jax(Block(), compute_dtype=jnp.bfloat16, lane_folding=folding)

    def step(params, buffers, x):
        def loss(params, x):
            return (module.apply(params, buffers, x, train=True)[0].astype(jnp.float32) ** 2).mean()

        grads = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 1e-3 * jax.lax.pmean(g, "data"), params, grads)

    rows, same = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(
        step, mesh=mesh, in_specs=(same, same, rows), out_specs=same, check_vma=False
    )
    x = jax.ShapeDtypeStruct(
        (32, 64, 48, 48), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data"))
    )
    everywhere = NamedSharding(mesh, PartitionSpec())
    arguments = (abstract(module.params, everywhere), abstract(module.buffers, everywhere), x)
    ahead = compile_ahead(jax.jit(sharded), arguments, topology, name="step", training=True)
    assert ahead.compiles and ahead.gpu is not None
    assert ahead.by_kind["all-reduce"][0] == 1
    image = 2 * math.prod((8, 64, 48, 48))
    # The input comes with its channels first; weights are small.
    weights = sum(4 * np.prod(p.shape) for p in module.params.values() if p.ndim == 4)
    assert ahead.gpu.transposed_bytes <= 2 * image + 4 * weights
    assert ahead.gpu.kernels["cuDNN"] >= 11  # no gradient for the input


def test_one_token_of_a_split_table_gathers_no_table():
    topology = load_topology("h100:4")
    mesh = meshes.make_mesh(4, topology.devices)
    rows, columns = 1024, 256
    module = to_jax(nn.Embedding(rows, columns))
    table = jax.ShapeDtypeStruct(
        (rows, columns), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data"))
    )
    everywhere = NamedSharding(mesh, PartitionSpec())
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32, sharding=everywhere)

    def look_up(weight, token):
        return module.apply({"weight": weight}, {}, token)[0]

    function = jax.jit(look_up, out_shardings=everywhere)
    ahead = compile_ahead(function, (table, token), topology, name="lookup")
    assert sum(one.bytes for one in ahead.collectives) <= 2 * 4 * columns


def test_preparing_leaves_the_cpu_to_jax():
    topology = prepare(AotOptions(aot="l4:1", platform="cpu"))
    assert topology.device.kind == "NVIDIA L4" and jax.default_backend() == "cpu"
