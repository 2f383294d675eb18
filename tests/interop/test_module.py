"""`to_jax` and `apply` as JAX users rely on them: purity, transformations, keys, names, errors."""
# ruff: noqa: PLW0108  (lambdas put off what they name)

import copy
import gc
import pickle
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax
from jaxsr.interop.errors import InputTypeError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.PReLU(), nn.Dropout(0.3)
        )
        self.head = nn.Conv2d(4, 2, 1)
        self.register_buffer("table", torch.arange(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

    def twice(self, x: torch.Tensor, *, scale: float = 2.0) -> dict:
        return {"y": self(x) * scale, "scale": scale}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


IMAGE = np.random.default_rng(0).standard_normal((4, 3, 6, 5)).astype(np.float32)


def test_names_are_torchs(net):
    jm = to_jax(net)
    assert list(jm.params) == [n for n, _ in net.named_parameters()]
    assert list(jm.buffers) == [n for n, _ in net.named_buffers()]
    assert jm.non_persistent == {"table"}
    assert jm.buffers["body.1.num_batches_tracked"].dtype == jnp.int32


def test_ties_are_one_parameter():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    jm = to_jax(nn.ModuleDict({"a": a, "b": b}))
    assert set(jm.params) == {"a.weight", "a.bias", "b.bias"}
    assert jm.aliases == {"b.weight": "a.weight"}


def test_the_module_is_left_alone(net):
    net.body[0].weight.requires_grad_(False)
    net.train()
    before = copy.deepcopy(net.state_dict())
    attributes = {n: dict(vars(m)) for n, m in net.named_modules()}
    jm = to_jax(net)
    jm.apply(jm.params, jm.buffers, IMAGE, train=True, rng=jax.random.key(0))
    jm.apply(jm.params, jm.buffers, IMAGE, train=False)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    for name, module in net.named_modules():
        assert vars(module).keys() == attributes[name].keys()
        assert module.training
    assert "body.0.weight" in jm.buffers


def test_a_copy_computes_the_same_and_pickles_are_refused(net):
    jm = to_jax(net)
    want = jm.apply(jm.params, jm.buffers, IMAGE, train=False)[0]
    for _ in range(5):
        other = copy.deepcopy(jm)
        assert other.params is not jm.params
        got = other.apply(other.params, other.buffers, IMAGE, train=False)[0]
        np.testing.assert_array_equal(got, want)
        del other
        gc.collect()
    with pytest.raises(InputTypeError, match="cannot be pickled; pickle its arrays"):
        pickle.dumps(jm)


def test_train_none_keeps_each_submodules_mode(net):
    net.train()
    net.body[3].eval()
    net.body[1].eval()
    jm = to_jax(net)
    _, buffers = jm.apply(jm.params, jm.buffers, IMAGE, train=None)
    np.testing.assert_array_equal(buffers["body.1.running_mean"], jm.buffers["body.1.running_mean"])
    with pytest.raises(UnsupportedTorchError, match="rng="):
        jm.apply(jm.params, jm.buffers, IMAGE, train=True)


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", ["grad", "dtype", "device", "inference", "autocast", "threads"])
def test_the_hosts_torch_state_neither_matters_nor_changes(net, change):
    jm = to_jax(net)
    key = jax.random.key(1)

    def run():
        return jax.grad(lambda p: jm.apply(p, jm.buffers, IMAGE, train=True, rng=key)[0].sum())(
            jm.params
        )

    want = run()
    if change == "grad":
        with torch.no_grad():
            got = run()
            assert not torch.is_grad_enabled()
    elif change == "dtype":
        torch.set_default_dtype(torch.float64)
        try:
            got = run()
            assert torch.get_default_dtype() == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
    elif change == "device":
        with torch.device("meta"):
            got = run()
            assert torch.empty(1).device.type == "meta"
    elif change == "inference":
        with torch.inference_mode():
            got = run()
            assert torch.is_inference_mode_enabled()
    elif change == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            got = run()
            assert torch.is_autocast_enabled("cpu")
    else:
        results = []
        workers = [threading.Thread(target=lambda: results.append(run())) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(results) == 3
        got = results[-1]
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)
    assert torch.backends.mha.get_fastpath_enabled()


def test_torch_computes_as_before_while_a_module_is_traced():
    class Net(nn.Module):
        def forward(self, x):
            settings.append((torch.backends.mkldnn.enabled, torch.get_num_threads()))
            return 2 * x

    # Programs that run at that moment call torch's kernels.
    settings: list[Any] = [(torch.backends.mkldnn.enabled, torch.get_num_threads())]
    to_jax(Net()).apply({}, {}, np.ones(3, np.float32))
    assert settings[0] == settings[1]


def test_the_threads_of_the_caller_stay_its_own():
    jm, before = to_jax(nn.Conv2d(3, 8, 3)), torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        jax.grad(lambda p: jm.apply(p, {}, IMAGE)[0].sum())(jm.params)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_transformations_agree(net):
    jm = to_jax(net)

    def forward(x):
        return jm.apply(jm.params, jm.buffers, x)[0]

    eager = forward(IMAGE)
    with torch.no_grad():
        want = net.eval()(torch.from_numpy(IMAGE)).numpy()
    np.testing.assert_allclose(eager, want, atol=1e-5)
    np.testing.assert_allclose(jax.jit(forward)(IMAGE), eager, atol=1e-6)
    each = jax.vmap(lambda x: forward(x[None])[0])(jnp.asarray(IMAGE))
    np.testing.assert_allclose(each, eager, atol=1e-6)
    assert jax.eval_shape(forward, IMAGE).shape == eager.shape
    remat = jax.grad(lambda x: jax.checkpoint(forward)(x).sum())(jnp.asarray(IMAGE))
    plain = jax.grad(lambda x: forward(x).sum())(jnp.asarray(IMAGE))
    np.testing.assert_allclose(remat, plain, atol=1e-6)
    _, tangent = jax.jvp(forward, (jnp.asarray(IMAGE),), (jnp.ones_like(IMAGE),))
    np.testing.assert_allclose(tangent.sum(), plain.sum(), rtol=1e-4)
    mesh = Mesh(np.array(jax.devices()[:4]), "data")
    split = jax.shard_map(forward, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    np.testing.assert_allclose(jax.jit(split)(IMAGE), eager, atol=1e-6)
    placed = jax.device_put(IMAGE, NamedSharding(mesh, P("data")))
    np.testing.assert_allclose(jax.jit(forward)(placed), eager, atol=1e-6)


def test_batch_norm_on_a_sharded_batch_sees_the_whole_batch():
    jm = to_jax(nn.BatchNorm2d(3))
    mesh = Mesh(np.array(jax.devices()[:4]), "data")
    placed = jax.device_put(IMAGE, NamedSharding(mesh, P("data")))
    run = jax.jit(lambda x: jm.apply(jm.params, jm.buffers, x, train=True))
    for a, b in zip(jax.tree.leaves(run(placed)), jax.tree.leaves(run(IMAGE)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_sync_batch_norm_inside_shard_map_sees_the_whole_batch():
    x = jnp.asarray(IMAGE)
    mesh = Mesh(np.array(jax.devices()[:4]), "data")
    jm = to_jax(nn.SyncBatchNorm(3), sync_axis="data")
    run = jax.shard_map(
        lambda x: jm.apply(jm.params, jm.buffers, x, train=True),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=(P("data"), P()),
    )
    on_one_device = to_jax(nn.BatchNorm2d(3))
    want = on_one_device.apply(on_one_device.params, on_one_device.buffers, x, train=True)
    for a, b in zip(jax.tree.leaves(jax.jit(run)(x)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_dropout_keys():
    jm = to_jax(nn.Sequential(nn.Dropout(0.25), nn.Dropout(0.25)))
    run = jax.jit(lambda k: jm.apply({}, {}, jnp.ones((400, 400)), rng=k, train=True)[0])
    a, b = run(jax.random.key(0)), run(jax.random.key(1))
    np.testing.assert_array_equal(a, run(jax.random.key(0)))
    assert not np.array_equal(a, b)
    kept_share = float((a != 0).mean())
    # Two independent draws: 0.75² kept, standard error √(0.56·0.44/160000) = 0.0012.
    assert abs(kept_share - 0.75**2) < 0.006
    np.testing.assert_allclose(a[a != 0], 1 / 0.75**2, rtol=1e-6)


@pytest.mark.slow
def test_distributions():
    class Draws(nn.Module):
        def forward(self, x):
            return {
                "rand": torch.rand(40000),
                "randn": torch.randn_like(x),
                "uniform": torch.empty(40000).uniform_(-1, 3),
                "normal": torch.empty(40000).normal_(2, 0.5),
                "bernoulli": torch.full((40000,), 0.2).bernoulli(),
                "randint": torch.randint(3, 7, (40000,)),
                "randperm": torch.randperm(100),
                "generator": torch.randn((40000,), generator=None),
                "chosen": torch.multinomial(torch.tensor([0.0, 1, 2, 3]), 3),
                "repeated": torch.multinomial(torch.tensor([[0.0, 1], [1, 1]]), 40000, True),
                "exponential": torch.empty(40000).exponential_(2.0),
                "geometric": torch.empty(40000, dtype=torch.int64).geometric_(0.25),
                "log_normal": torch.empty(40000).log_normal_(0.5, 0.25).log(),
                "cauchy": torch.empty(40000).cauchy_(2.0, 3.0).sub(2).div(3).arctan(),
            }

    out, _ = to_jax(Draws()).apply({}, {}, jnp.zeros(40000), rng=jax.random.key(0))
    # Five standard errors of a mean of 40000.
    for name, mean, std in (
        ("rand", 0.5, 12**-0.5),
        ("randn", 0, 1),
        ("generator", 0, 1),
        ("uniform", 1, 4 / 12**0.5),
        ("normal", 2, 0.5),
        ("bernoulli", 0.2, 0.4),
        ("randint", 4.5, 1.118),
        ("exponential", 0.5, 0.5),
        ("geometric", 4, 12**0.5),
        ("log_normal", 0.5, 0.25),
        ("cauchy", 0, np.pi / 12**0.5),
    ):
        assert abs(float(out[name].mean()) - mean) < 5 * std / 200, name
        assert abs(float(out[name].std()) - std) < 0.03 * std + 0.01, name
    assert sorted(out["randperm"].tolist()) == list(range(100))
    assert sorted(out["chosen"].tolist()) == [1, 2, 3]
    assert out["repeated"][0].min() == 1
    assert set(np.unique(out["randint"])) == {3, 4, 5, 6}


def test_methods_keywords_and_pass_through(net):
    jm = to_jax(net)
    out, _ = jm.apply(jm.params, jm.buffers, IMAGE, method="twice", scale=3.0)
    plain, _ = jm.apply(jm.params, jm.buffers, IMAGE)
    np.testing.assert_allclose(out["y"], 3 * plain, rtol=1e-6)
    assert out["scale"] == 3.0


def test_meta_module_gives_shapes():
    with torch.device("meta"):
        jm = to_jax(Net())
    assert all(isinstance(v, jax.ShapeDtypeStruct) for v in jm.params.values())
    out, _ = jax.eval_shape(
        lambda p, b, x: jm.apply(p, b, x), jm.params, jm.buffers, jnp.asarray(IMAGE)
    )
    assert out.shape == (4, 2, 6, 5)


def test_compute_dtype(net):
    jm = to_jax(net, compute_dtype=jnp.bfloat16)
    exact = to_jax(net)

    def loss(params, module):
        out, after = module.apply(params, module.buffers, IMAGE, train=True, rng=jax.random.key(0))
        return jnp.square(out.astype(jnp.float32)).mean(), (out, after)

    grads, (out, after) = jax.grad(loss, has_aux=True)(jm.params, jm)
    wanted, (_, tracked) = jax.grad(loss, has_aux=True)(jm.params, exact)
    assert out.dtype == jnp.bfloat16
    assert all(g.dtype == jnp.float32 for g in grads.values())
    assert after["body.1.running_var"].dtype == jnp.float32
    # Statistics are summed in float32; only their input is rounded (8 bits).
    np.testing.assert_allclose(
        after["body.1.running_var"], tracked["body.1.running_var"], rtol=5e-3
    )
    for name, value in wanted.items():
        scale = float(jnp.abs(value).max())
        # A bias before BatchNorm has gradient 0: what is left of it is rounding.
        np.testing.assert_allclose(grads[name], value, atol=0.06 * scale + 1e-3)


def test_remat_recomputes_and_agrees(net):
    plain, remat = to_jax(net), to_jax(net, remat=("body.*", "head"))

    def loss(params, jm):
        out, after = jm.apply(params, jm.buffers, IMAGE, train=True, rng=jax.random.key(0))
        return (out**2).sum(), after

    assert str(jax.make_jaxpr(lambda p: loss(p, remat))(plain.params)).count("remat") == 5
    got, want = (
        jax.jit(jax.grad(lambda p, jm=jm: loss(p, jm), has_aux=True))(plain.params)
        for jm in (remat, plain)
    )
    # The gradient of a bias before a BatchNorm is 0: what is left are roundings of the others.
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(want[0]))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * max(scale, 1))
    with pytest.raises(ValueError, match="matches no submodule"):
        to_jax(net, remat="tail.*")


def test_trains_with_optax_under_jit_with_donation(net):
    jm, tx = to_jax(net), optax.adam(1e-2)
    target = jnp.zeros((4, 2, 6, 5))

    def step(state, key):
        params, buffers, opt = state

        def loss(params):
            out, after = jm.apply(params, buffers, IMAGE, train=True, rng=key)
            return jnp.mean((out - target) ** 2), after

        (value, buffers), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), buffers, opt), value

    step = jax.jit(step, donate_argnums=0)
    state = jax.tree.map(jnp.copy, (jm.params, jm.buffers, tx.init(jm.params)))
    losses = []
    for key in jax.random.split(jax.random.key(0), 10):
        state, value = step(state, key)
        losses.append(float(value))
    assert losses[-1] < losses[0]
    assert int(state[1]["body.1.num_batches_tracked"]) == 10


def test_one_error_names_the_place_and_the_way_out():
    class Bad(nn.Module):
        def forward(self, x):
            return x if x.mean() > 0 else -x

    module = nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.ReLU(), Bad()))
    jm = to_jax(module)
    with pytest.raises(UnsupportedTorchError) as error:
        jax.jit(lambda p, x: jm.apply(p, jm.buffers, x)[0])(jm.params, jnp.ones((2, 5)))
    text = str(error.value)
    assert "'1.1'" in text
    assert "Bad" in text
    assert "torch.where" in text
    assert error.value.__context__ is not None


def test_wrong_shapes_raise_torchs_own_error():
    jm = to_jax(nn.Linear(5, 5))
    with pytest.raises(RuntimeError, match=r"Linear: RuntimeError: .*\[2, 4\]"):
        jm.apply(jm.params, jm.buffers, jnp.ones((2, 4)))


def test_devices_that_the_code_names_mean_nothing():
    class Placed(nn.Module):
        def forward(self, x):
            y = torch.ones(3, device="cuda") + torch.arange(3, device=torch.device("cuda:0"))
            z = x.to("cuda").cuda().to(torch.device("cpu"), torch.float32).cpu().to(0)
            return y.to(x) * z + x.new_zeros(3, device="cuda") + torch.zeros_like(x, device="meta")

    out, _ = to_jax(Placed()).apply({}, {}, jnp.ones(3))
    np.testing.assert_array_equal(out, [1, 2, 3])


def test_names_must_match(net):
    jm = to_jax(net)
    with pytest.raises(ValueError, match=r"missing \['head.bias'\]"):
        jm.apply({n: v for n, v in jm.params.items() if n != "head.bias"}, jm.buffers, IMAGE)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: nn.Linear(3, 3).double(), r"weight: torch\.float64"),
        (lambda: nn.DataParallel(nn.Linear(3, 3)), r"\.module"),
        (lambda: torch.jit.trace(nn.Linear(3, 3), torch.ones(1, 3)), "TorchScript"),
        (lambda: nn.LazyLinear(3), "lazy"),
        (lambda: _overlapping(), "same memory"),
        (lambda: _big_integer(), "beyond int32"),
    ],
)
def test_refused_at_conversion(build, text):
    with pytest.raises(UnsupportedTorchError, match=text):
        to_jax(build())


def _overlapping() -> nn.Module:
    module = nn.Linear(3, 3)
    module.register_buffer("twin", module.weight.data)
    return module


def _big_integer() -> nn.Module:
    module = nn.Module()
    module.register_buffer("big", torch.tensor([2**40]))
    return module


def test_inputs_that_would_lose_information():
    jm = to_jax(nn.Identity())
    with pytest.raises(UnsupportedTorchError, match="float64"):
        jm.apply({}, {}, np.ones(3))
    with pytest.raises(UnsupportedTorchError, match="int32"):
        jm.apply({}, {}, np.array([2**40]))
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        jm.apply({}, {}, torch.ones(3))


def test_plain_torch_works_as_before_after_a_conversion():
    to_jax(nn.Identity())
    assert torch.accelerator.current_accelerator(check_available=True) is None
    layer = nn.Linear(3, 3)
    run = torch.utils.checkpoint.checkpoint
    run(layer, torch.ones(1, 3), use_reentrant=False).sum().backward()
    assert layer.weight.grad is not None


def test_a_tensor_kept_from_a_trace_is_refused_later():
    tensors = []

    class Leaks(nn.Module):
        def forward(self, x):
            tensors.append(x)
            return x

    to_jax(Leaks()).apply({}, {}, jnp.ones(3))
    with pytest.raises(UnsupportedTorchError, match=r"outside JaxModule\.apply"):
        tensors[0] + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: to_jax(3), "to_jax takes a torch.nn.Module, got 3"),
        (lambda: to_jax(nn.ReLU), "got the class ReLU; make a module of it"),
        (lambda: to_jax(nn.ReLU(), compute_dtype="float99"), "compute_dtype must be a dtype"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_what_is_no_module_is_named(call, message):
    with pytest.raises(InputTypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("params", "x"), {}, "buffers must be a dictionary of arrays, got ArrayImpl; apply takes"),
        ((None, "buffers", "x"), {}, "params must be a dictionary of arrays, got NoneType"),
        (("params", "buffers", "x"), {"train": "yes"}, "train must be True, False or None"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_apply_names_the_wrong_argument(arguments, options, message):
    model = to_jax(nn.Linear(3, 2))
    known = {"params": model.params, "buffers": model.buffers, "x": jnp.ones((4, 3)), None: None}
    with pytest.raises(InputTypeError, match=message):
        model.apply(*[known[name] for name in arguments], **options)
