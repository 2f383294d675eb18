"""Collectives of the compiled training step."""

import copy
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop.aot.hlo import collectives
from jaxsr.interop.errors import InputError, UnsupportedTorchError, UserError
from jaxsr.interop.mesh import make_mesh, place, place_batch, replicated
from jaxsr.interop.train.objective import Objective, Phase, Player, index_rule
from jaxsr.interop.train.optimizers import OptimizerConfig, make_optimizer, make_schedule
from jaxsr.interop.train.step import StepConfig, TrainStep, convert, init_state
from jaxsr.interop.train.torch_step import TorchStep


class Distilled(Objective):
    """A small network with BatchNorm that learns to match a frozen, much larger one."""

    phases = (Phase(name="fit", players=(Player(network="student", loss="loss"),)),)

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.teacher = nn.Conv2d(3, 4, 3)
        self.unused = nn.Linear(100, 100)
        for frozen in (self.teacher, self.unused):
            frozen.requires_grad_(False)

    def share(self, batch):
        return {"out": self.student(batch["image"])}

    def loss(self, shared, batch):
        return F.mse_loss(shared["out"], self.teacher(batch["image"])), {}


def test_local_batch_norm_sends_gradients_and_statistics_once_and_nothing_frozen():
    torch.manual_seed(0)
    objective, mesh = Distilled(), make_mesh(8)
    config = StepConfig(batch_norm="local")
    model, optimizers = convert(objective, config), {"student": optax.sgd(0.1)}
    step = TrainStep(
        model, objective.phases[0], optimizers, prepare=lambda b, _: b, mesh=mesh, config=config
    )
    state = init_state(model, optimizers, exported="student", seed=0, ema=False)
    state = place(state, jax.tree.map(lambda _: replicated(mesh), state))
    images = np.random.default_rng(0).standard_normal((16, 3, 8, 8), np.float32)
    batch = place_batch({"image": images}, mesh)
    lowered = jax.jit(step).lower(state, batch)
    # In its own shape: to reshape a kernel to a row costs a TPU more than to send it.
    assert re.search(r"all_reduce.*?\(tensor<4x3x3x3xf32>\)", lowered.as_text(), re.DOTALL)
    program = lowered.compile()

    sent = [(c.kind, c.bytes) for c in collectives(program.as_text() or "")]
    learned = sum(p.numel() for p in objective.student.parameters())
    loss, statistics = 1, 2 * 4
    assert sent == [("all-reduce", 4 * (learned + statistics + loss))]

    after, metrics = program(state, batch)
    assert jnp.isfinite(metrics["student/loss"])
    for name, value in objective.teacher.named_parameters():
        np.testing.assert_array_equal(after.buffers[f"teacher.{name}"], value.detach())


def one_step(objective: Objective, images: np.ndarray, devices: int, config: StepConfig):
    """State and metrics after a step over so many devices."""
    mesh = make_mesh(devices)
    model, optimizers = convert(objective, config), {"student": optax.sgd(0.1)}
    step = TrainStep(
        model, objective.phases[0], optimizers, prepare=lambda b, _: b, mesh=mesh, config=config
    )
    state = init_state(model, optimizers, exported="student", seed=0, ema=False)
    state = place(state, jax.tree.map(lambda _: replicated(mesh), state))
    return jax.jit(step)(state, place_batch({"image": images}, mesh))


def test_bfloat16_takes_statistics_of_the_whole_batch_and_sums_in_float32():
    torch.manual_seed(0)
    objective = Distilled()
    # Rows of very different brightness: a device's own statistics are far from the batch's.
    images = np.random.default_rng(0).standard_normal((16, 3, 8, 8), np.float32)
    images += np.linspace(-3, 3, 16, dtype=np.float32)[:, None, None, None]
    global_statistics = StepConfig(dtype="bfloat16")
    alone = StepConfig(dtype="bfloat16", batch_norm="local")
    one, single = one_step(objective, images, 1, global_statistics)
    eight, metrics = one_step(objective, images, 8, global_statistics)
    _, local = one_step(objective, images, 8, alone)
    assert {v.dtype for v in eight.params.values()} == {jnp.dtype("float32")}
    # The same bfloat16 products; only the order of float32 sums differs.
    for name in ("student.1.running_mean", "student.1.running_var"):
        np.testing.assert_allclose(eight.buffers[name], one.buffers[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["student/loss"], single["student/loss"], rtol=1e-3)
    assert float(local["student/loss"]) > 1.5 * float(single["student/loss"])


class Positioned(nn.Module):
    """Adds a table and a moving average, which are buffers of float32, before its products."""

    def __init__(self):
        super().__init__()
        self.table: torch.Tensor
        self.mean: torch.Tensor
        self.register_buffer("table", torch.sin(torch.arange(6 * 16.0)).reshape(6, 16))
        self.register_buffer("mean", torch.zeros(16))
        self.norm, self.linear = nn.GroupNorm(4, 16), nn.Linear(16, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.convolution = nn.Conv1d(16, 8, 3)

    def forward(self, x):
        x = self.norm(x.mT).mT
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean((0, 1)))
        x = x + self.table
        x = x + self.linear(x + self.mean) @ (self.table.mT @ self.table)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.convolution(x.mT)


class Positions(Distilled):
    def __init__(self):
        super().__init__()
        self.student = Positioned()

    def loss(self, shared, batch):
        return F.mse_loss(shared["out"], batch["image"].mT[:, :8, 1:-1]), {}


def test_products_with_buffers_are_in_bfloat16_as_in_torchs_step():
    torch.manual_seed(0)
    objective, config = Positions(), StepConfig(dtype="bfloat16")
    rows = np.random.default_rng(0).standard_normal((4, 6, 16), np.float32)
    after, metrics = one_step(objective, rows, 1, config)
    model = convert(objective, config)
    halves = {name: value.astype(jnp.bfloat16) for name, value in model.params.items()}
    run = partial(model.apply, train=True, method="share")
    program = jax.jit(run).lower(halves, model.buffers, {"image": rows}).as_text()
    products = re.findall(r"dot_general.*: \((.*)\) ->", program)
    assert len(products) > 3 and not [line for line in products if "f32>, " in line]
    sgd = {"student": OptimizerConfig(optimizer="sgd", lr=0.1)}
    step = TorchStep(objective, sgd, {"student": 1}, config=config, exported="student")
    expected = step.train_step("fit", {"image": rows})
    for name in ("loss", "grad_norm"):
        value = float(metrics[f"student/{name}"])
        np.testing.assert_allclose(value, float(expected[f"student/{name}"]), rtol=0.01)
    mean = objective.student.mean
    np.testing.assert_allclose(after.buffers["student.mean"], mean, rtol=0.02, atol=1e-3)


class Classified(Distilled):
    """Four classes by one linear layer."""

    def __init__(self):
        super().__init__()
        self.student = nn.Linear(3, 4)

    def loss(self, shared, batch):
        return F.cross_entropy(shared["out"], batch["label"]), {}


@pytest.mark.parametrize("label", [3, 4])
def test_an_index_out_of_range_leaves_the_state_as_it_was(label):
    objective = Classified()
    before = {n: p.detach().numpy().copy() for n, p in objective.student.named_parameters()}
    model, optimizers = convert(objective, StepConfig()), {"student": optax.sgd(0.1)}
    phase = objective.phases[0]
    step = TrainStep(model, phase, optimizers, prepare=lambda b, _: b, mesh=make_mesh(1))
    state = init_state(model, optimizers, exported="student", seed=0, ema=False)
    batch = {"image": jnp.ones((2, 3)), "label": jnp.array([0, label])}
    after, metrics = jax.jit(step)(state, batch)
    (index,) = (int(value) for name, value in metrics.items() if index_rule(name) is not None)
    is_outside = label == 4
    assert (index, int(after.failed_step)) == ((4, 1) if is_outside else (0, 0))
    for name, value in before.items():
        assert np.array_equal(after.params[f"student.{name}"], value) == is_outside


class MeanTeacher(Distilled):
    """A student drawn to the moving average of itself, which the loss keeps in frozen weights."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(3, 2), nn.Linear(3, 2)
        self.teacher.requires_grad_(False)

    def loss(self, shared, batch):
        with torch.no_grad():
            for kept, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                kept.mul_(0.5).add_(new, alpha=0.5)
        return F.mse_loss(shared["out"], 1 - self.teacher(batch["image"]))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_frozen_weights_that_the_loss_writes_move_as_in_torch(accumulate):
    objective = MeanTeacher()
    config, images = StepConfig(accumulate=accumulate), torch.randn(4, 3)
    model, optimizers = convert(objective, config), {"student": optax.sgd(0.1)}
    phase = objective.phases[0]
    step = TrainStep(
        model, phase, optimizers, prepare=lambda b, _: b, mesh=make_mesh(1), config=config
    )
    step = jax.jit(step)
    state = init_state(model, optimizers, exported="student", seed=0, ema=False)
    optimizer = torch.optim.SGD(objective.student.parameters(), 0.1)
    batch = {"image": jnp.asarray(images.numpy()), "boxes": jnp.zeros((4, 0, 2))}
    for _ in range(3):
        state, _ = step(state, batch)
        optimizer.zero_grad()
        for index in range(accumulate):
            rows = {"image": images[index::accumulate]}
            (objective.loss(objective.share(rows), rows) / accumulate).backward()
        optimizer.step()
    arrays = {**state.params, **state.buffers}
    for name, value in objective.named_parameters():
        np.testing.assert_allclose(arrays[name], value.detach(), rtol=1e-5, atol=1e-6)


def test_frozen_weights_that_bfloat16_would_round_are_refused():
    with pytest.raises(UnsupportedTorchError, match=r"writes the frozen parameter teacher\.\w+, "):
        one_step(MeanTeacher(), np.ones((2, 3), np.float32), 1, StepConfig(dtype="bfloat16"))


def test_complex_parameters_are_refused():
    objective = MeanTeacher()
    objective.student.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(UnsupportedTorchError, match=r"student\.phase is torch.complex64.*view_as"):
        convert(objective, StepConfig())


class Late(Distilled):
    """Makes a layer in its first call."""

    def share(self, batch):
        if not hasattr(self.student, "late"):
            self.student.add_module("late", nn.Linear(3, 4))
        return {"out": self.student.get_submodule("late")(batch["image"])}


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_parameters_that_a_step_makes_are_refused(engine):
    objective, images = Late(), np.ones((2, 3), np.float32)
    objective.teacher = nn.Linear(3, 4)
    with pytest.raises(UserError, match=r"makes the parameter student\.late\.weight, which no"):
        if engine == "jax":
            one_step(objective, images, 1, StepConfig())
        else:
            config = {"student": OptimizerConfig()}
            step = TorchStep(objective, config, {"student": 1}, exported="student")
            step.train_step("fit", {"image": images})


def test_buffers_outside_the_state_dictionary_are_of_torchs_state():
    objective = Distilled()
    objective.student.register_buffer("count", torch.tensor(3.0), persistent=False)
    config, updates = {"student": OptimizerConfig()}, {"student": 1}
    state = TorchStep(objective, config, updates, exported="student").state()
    objective.student.count = torch.zeros(())  # the state shares memory with the old one
    TorchStep(objective, config, updates, exported="student").load(state)
    assert objective.student.count == 3


class Functional(Distilled):
    """Normalises with the function, which nobody can tell to exchange statistics."""

    def share(self, batch):
        out = self.student(batch["image"])
        return {"out": F.batch_norm(out, None, None, training=True)}


def test_statistics_of_a_part_of_the_batch_are_refused():
    images = np.zeros((16, 3, 8, 8), np.float32)
    with pytest.raises(UnsupportedTorchError, match="use one of these modules, --batch-norm local"):
        one_step(Functional(), images, 8, StepConfig(dtype="bfloat16"))
    one_step(Functional(), images, 8, StepConfig())  # XLA partitions: statistics of all rows


def test_instance_norm_needs_no_exchange():
    torch.manual_seed(0)
    objective = Distilled()
    objective.student = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True))
    images = np.random.default_rng(0).standard_normal((16, 3, 8, 8), np.float32)
    config = StepConfig(dtype="bfloat16")
    _, one = one_step(objective, images, 1, config)
    _, eight = one_step(objective, images, 8, config)
    np.testing.assert_allclose(eight["student/loss"], one["student/loss"], rtol=1e-3)


def test_metrics_are_the_norms_and_the_learning_rate_in_both_engines():
    """After two updates, the second on the way up a warm-up, against torch's own norms."""
    torch.manual_seed(0)
    objective, mesh = Distilled(), make_mesh(1)
    config = OptimizerConfig(optimizer="sgd", lr=0.5, warmup_steps=4, clip_norm=0.1)
    model = convert(objective, StepConfig())
    step = TrainStep(
        model,
        objective.phases[0],
        {"student": make_optimizer(config, 10)},
        prepare=lambda batch, _: batch,
        mesh=mesh,
        schedules={"student": make_schedule(config, 10)},
    )
    state = init_state(model, step.optimizers, exported="student", seed=0, ema=False)
    torch_step = TorchStep(objective, {"student": config}, {"student": 10}, exported="student")
    images = np.random.default_rng(0).standard_normal((4, 3, 8, 8), np.float32)
    for lr in (0.125, 0.25):
        before = [p.detach().clone() for p in objective.student.parameters()]
        state, metrics = jax.jit(step)(state, {"image": jnp.asarray(images)})
        expected = torch_step.train_step("fit", {"image": images})
        assert metrics.keys() == expected.keys()
        # torch's update is a difference of rounded parameters, a hundred times its own size.
        tolerances = {"loss": 1e-5, "grad_norm": 1e-5, "param_norm": 1e-6, "update_norm": 1e-4}
        for name, rtol in tolerances.items():
            value = metrics[f"student/{name}"]
            np.testing.assert_allclose(value, expected[f"student/{name}"], rtol=rtol, err_msg=name)
        assert float(metrics["student/lr"]) == float(expected["student/lr"]) == lr
        norm = nn.utils.get_total_norm(before)
        np.testing.assert_allclose(metrics["student/param_norm"], norm, rtol=1e-6)
        # A step of plain SGD is lr as long as the clipped gradient.
        np.testing.assert_allclose(metrics["student/update_norm"], lr * 0.1, rtol=1e-4)


def test_each_player_is_a_scope_of_the_program():
    objective, mesh = Distilled(), make_mesh(1)
    model, optimizers = convert(objective, StepConfig()), {"student": optax.sgd(0.1)}
    step = TrainStep(
        model, objective.phases[0], optimizers, prepare=lambda batch, _: batch, mesh=mesh
    )
    state = init_state(model, optimizers, exported="student", seed=0, ema=False)
    images = jnp.zeros((2, 3, 8, 8))
    text = jax.jit(step).lower(state, {"image": images}).as_text(debug_info=True)
    assert "student/" in text


def test_an_optimiser_with_a_random_key_is_refused():
    rules = {"student": optax.add_noise(0.1, 0.5, key=jax.random.key(0))}
    with pytest.raises(InputError, match="keeps a random key in its state"):
        init_state(convert(Distilled(), StepConfig()), rules, exported="student", seed=0, ema=False)


class Adversarial(Objective):
    """A generator with BatchNorm whose result two players see."""

    phases = (
        Phase(
            name="fit",
            players=(
                Player(network="made", loss="made_loss"),
                Player(network="judge", loss="judge_loss", through_shared=False),
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.made = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.judge = nn.Linear(3, 1)

    def share(self, batch):
        return {"out": self.made(batch["x"])}

    def made_loss(self, shared, batch):
        return F.mse_loss(shared["out"], batch["x"]) - self.judge(shared["out"]).mean(), {}

    def judge_loss(self, shared, batch):
        return (self.judge(shared["out"]) - self.judge(batch["x"])).mean(), {}


def test_statistics_of_shared_tensors_count_once_for_each_slice_in_both_engines():
    torch.manual_seed(0)
    objective, config = Adversarial(), StepConfig(accumulate=2)
    x = torch.randn(4, 3)
    plain = copy.deepcopy(objective.made)
    for index in range(2):
        plain(x[index::2])
    rule = OptimizerConfig(optimizer="sgd", lr=1e-9)
    rules = {"made": rule, "judge": rule}
    model = convert(objective, config)
    optimizers = {name: make_optimizer(rule, 1) for name in rules}
    state = init_state(model, optimizers, exported="made", seed=0, ema=False)
    step = TrainStep(
        model, objective.phase("fit"), optimizers, prepare=lambda batch, key: batch,
        mesh=make_mesh(1), config=config,
    )  # fmt: skip
    state, _ = jax.jit(step)(state, {"x": jnp.asarray(x)})
    options = {"exported": "made", "config": config}
    in_torch = TorchStep(objective, rules, {"made": 1, "judge": 1}, **options)
    in_torch.train_step("fit", {"x": x.numpy()})
    buffers = dict(in_torch.objective.named_buffers())
    for name, value in plain.named_buffers():
        np.testing.assert_allclose(buffers[f"made.{name}"], value, atol=1e-6)
        np.testing.assert_allclose(state.buffers[f"made.{name}"], value, atol=1e-6)
    with pytest.raises(InputError, match="3 rows cannot be cut into accumulate=2"):
        in_torch.train_step("fit", {"x": x[:3].numpy()})


class Counting(Distilled):
    """Counts the signs of its outputs, of all rows."""

    def __init__(self):
        super().__init__()
        self.student.register_buffer("hits", torch.zeros(2, dtype=torch.int64))
        self.student.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    def share(self, batch):
        out = self.student(batch["image"])
        positive, buffers = (out > 0).sum(), dict(self.student.named_buffers())
        buffers["hits"].add_(torch.stack([positive, out.numel() - positive]))
        buffers["num_batches_tracked"].add_(1)
        return {"out": out}


def test_counts_of_rows_are_refused_where_each_device_counts_its_own(caplog):
    images = np.random.default_rng(0).standard_normal((8, 3, 6, 6), np.float32)
    config = StepConfig(dtype="bfloat16")
    _, metrics = one_step(Counting(), images, 2, config)
    broken = [name for name in metrics if index_rule(name) and int(metrics[name])]
    assert len(broken) == 1 and "student.hits on each device" in broken[0]
    assert "student.hits, student.num_batches_tracked from each device's rows" in caplog.text
    caplog.clear()
    for devices, other in ((1, config), (2, StepConfig())):
        state, _ = one_step(Counting(), images, devices, other)
        assert int(state.buffers["student.hits"].sum()) == 8 * 4 * 4 * 4
    assert not caplog.text
