"""Programs compiled ahead of time have the cache keys of those compiled on the device.

There is no device: the command runs as if it had the compile-only devices of a topology, and a
program "runs" by being compiled for them. What it would compute is zeros.
"""

import contextlib
import importlib
import importlib.util
import os
import types

import jax
import numpy as np
import pytest
from jax._src import cache_key, compilation_cache
from PIL import Image
from safetensors.torch import save_file

from jaxsr import detect, restore, train
from jaxsr.interop import mesh as meshes
from jaxsr.interop.aot.compile import abstract
from jaxsr.interop.aot.topology import load_topology
from jaxsr.runtime import jax_runner
from jaxsr.training import engines
from jaxsr.training.cli_options import parse_command_line
from jaxsr.training.fine_tuning import prepare_network
from jaxsr.training.task_run import TaskRun


def topology_with(package, name):
    missing = importlib.util.find_spec(package) is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"needs {package}"))


DEVICES = [topology_with("libtpu", "v5e:2x2"), topology_with("jax_cuda13_plugin", "h100:1")]
OWN = """
import torch
class Net(torch.nn.Conv2d):
    def __init__(self):
        super().__init__(3, 3, 3, padding=1)
class Plain(torch.nn.Conv2d):
    def __init__(self):
        super().__init__(3, 1, 3, padding=1)
class Detector(Plain):
    def forward(self, x, size_B2=None):
        mask = 1 if size_B2 is None else (size_B2[:, :1, None, None] > 40)
        return super().forward(x) * mask
"""


@pytest.fixture
def keys(monkeypatch):
    """Keys that JAX asked its cache for, of programs that are not for CPUs; settings come back."""
    names = (
        "jax_compilation_cache_dir",
        "jax_default_matmul_precision",
        "jax_enable_compilation_cache",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {name: jax.config.values[name] for name in names}
    for name in (
        "_hash_platform",
        "_hash_accelerator_config",
        "_hash_serialized_compile_options",
    ):
        monkeypatch.setattr(cache_key, name, getattr(cache_key, name))
    monkeypatch.setattr(compilation_cache, "get_file_cache", compilation_cache.get_file_cache)
    requested = []
    get = cache_key.get

    def recorded(module, devices, options, backend, *args, **kwargs):
        key = get(module, devices, options, backend, *args, **kwargs)
        requested.append((backend.platform, key))
        return key

    monkeypatch.setattr(cache_key, "get", recorded)
    compilation_cache.reset_cache()

    def taken():
        taken = [key for platform, key in requested if platform != "cpu"]
        requested.clear()
        return sorted(taken)

    yield taken
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@contextlib.contextmanager
def devices_of(topology, module, monkeypatch):
    """`module` places shapes instead of arrays on the topology's devices, and compiles for them."""

    def placed(tree, shardings):
        return abstract(jax.tree.map(np.asarray, tree), shardings)

    def jit(function, **options):
        jitted = jax.jit(function, **options)
        programs = {}

        def compiled(*args):
            key = str(jax.tree.map(lambda x: (x.shape, x.dtype), args))
            if key not in programs:
                lowered = jitted.lower(*args)
                programs[key] = lowered, lowered.compile()
            return programs[key]

        def call(*args):
            lowered, _ = compiled(*args)
            return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), lowered.out_info)

        # As jax.jit, which compiles once for `lower` and the call.
        call.lower = lambda *args: types.SimpleNamespace(compile=lambda: compiled(*args)[1])
        return call

    stand_in = types.SimpleNamespace(**vars(jax) | {"device_put": placed, "jit": jit})
    platform = meshes.platform_name(topology.devices[0].platform)
    with monkeypatch.context() as patch:
        patch.setattr(module, "jax", stand_in)
        patch.setattr(meshes, "place", abstract)
        patch.setattr(
            meshes, "place_batch", lambda batch, mesh: placed(batch, meshes.batch_sharding(mesh))
        )
        patch.setattr(meshes, "select_platform", lambda *_, **__: platform)
        patch.setattr(meshes, "first_devices", lambda n, _=None: list(topology.devices)[:n])
        yield


def keys_of_both(keys, name, main, options, tmp_path, monkeypatch):
    """Keys of the command with `--aot`, and of the same command that runs."""
    save = str(tmp_path / "ahead")
    assert main([*options, "--aot", name, "--aot-save", save]) == 0
    ahead = keys()
    compilation_cache.reset_cache()
    jax.config.update("jax_enable_compilation_cache", True)
    topology = load_topology(name)
    options = [*options, "--mesh", str(len(topology.devices))]
    options += ["--compile-cache", str(tmp_path / "live")]
    with devices_of(topology, jax_runner, monkeypatch):
        assert main(options) == 0
    return ahead, keys()


@pytest.fixture
def own_network(tmp_path, monkeypatch):
    """A module with networks, and a function that saves the weights of one."""
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("own_networks")

    def options(name):
        path = tmp_path / f"{name}.safetensors"
        save_file(getattr(module, name)().state_dict(), path)
        return ["--model", f"own_networks:{name}", "--weights", str(path)]

    return options


def pictures(folder, *sizes, form="png"):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number, (height, width) in enumerate(sizes):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.{form}")
    return str(folder)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(
    ("sizes", "options", "programs"),
    [
        ([(48, 64)], ["--batch", "8", "--dtype", "bfloat16"], 1),
        ([(48, 64), (40, 40)], ["--matmul-precision", "highest"], 2),
        # Many sizes share few tiles; the last is narrower than all and torch's, on the host.
        ([(130, 70), (70, 130), (64, 64), (140, 150), (9, 90)], ["--tile", "64"], 1),
        ([(48, 64), (50, 41), (33, 65)], ["--tiling", "off"], 3),
    ],
)
def test_restore(name, sizes, options, programs, keys, own_network, tmp_path, monkeypatch):
    options = [pictures(tmp_path / "in", *sizes), *own_network("Net"), *options]
    options += ["--out", str(tmp_path / "out")]
    ahead, live = keys_of_both(keys, name, restore.main, options, tmp_path, monkeypatch)
    assert sorted(set(live)) == ahead and len(ahead) == programs


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(
    ("network", "options", "programs"),
    [
        ("Detector", ["--base", "64"], 1),
        ("Detector", ["--size", "native", "--batch", "4"], 1),  # all on one canvas
        ("Plain", ["--size", "native"], 2),
    ],
)
def test_detect(name, network, options, programs, keys, own_network, tmp_path, monkeypatch):
    sizes = [(64, 64), (33, 100), *[(64, 50)] * 7]
    options = [pictures(tmp_path / "in", *sizes), *own_network(network), *options]
    options += ["--out", str(tmp_path / "out")]
    ahead, live = keys_of_both(keys, name, detect.main, options, tmp_path, monkeypatch)
    assert sorted(set(live)) == ahead and len(ahead) == programs


@pytest.mark.slow
@pytest.mark.parametrize("name", DEVICES)
def test_train(name, keys, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    options = ["--model.width", "8", "--model.depth", "1", "--batch", "8", "--crop", "32"]
    options += ["--deterministic"]
    save = str(tmp_path / "ahead")
    assert train.main([*options, "--aot", name, "--aot-save", save]) == 0
    ahead = keys()
    compilation_cache.reset_cache()
    topology = load_topology(name)
    family, kind, config = parse_command_line([*options, "--mesh", str(len(topology.devices))])
    task = TaskRun(family, kind, config)
    prepare_network(task.network, task.config)
    constants = dict(task.constants(None))
    monkeypatch.setattr(task, "constants", lambda sharding: abstract(constants, sharding))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "live"))
    with task.batches(0, host=0, hosts=1) as batches, devices_of(topology, engines, monkeypatch):
        assert "--xla_gpu_deterministic_ops=true" in os.environ["XLA_FLAGS"]
        engines.JaxEngine(task).train_step(task.phases[0][0], next(iter(batches)))
    assert keys() == ahead and len(ahead) == 1


@pytest.mark.parametrize("devices", [1, 4])
def test_arrays_give_the_program_of_their_shapes(devices, own_network):
    """`devices_of` assumes this: the command places arrays, `--aot` has only shapes."""
    own_network("Net")
    network = importlib.import_module("own_networks").Net()
    runner = jax_runner.JaxRunner(network, mesh=meshes.make_mesh(devices))
    arrays = runner._state, jax.device_put(np.zeros((4, 3, 8, 8), np.float32), runner._rows), {}
    shapes = jax.tree.map(lambda x: abstract(x, x.sharding), arrays)
    texts = [runner._run.lower(*arguments).as_text() for arguments in (arrays, shapes)]
    assert texts[0] == texts[1]
