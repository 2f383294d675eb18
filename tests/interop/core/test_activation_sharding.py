"""Activations are stated to be split as the batch's rows are: what is sent, and what is left."""

import contextlib

import jax
import numpy as np
import optax
import pytest
import torch
from jax.sharding import PartitionSpec
from torch import nn
from torch.nn import functional as F

from jaxsr.interop import mesh as meshes
from jaxsr.interop.aot.hlo import collectives
from jaxsr.interop.mesh_shape import MeshShape
from jaxsr.interop.module import to_jax
from jaxsr.interop.train import gradients
from jaxsr.interop.train.objective import Objective, Phase, Player
from jaxsr.interop.train.step import StepConfig, TrainStep, convert, init_state

RULES = {"*.embed": "colwise", "*.up": "colwise", "*.down": "rowwise", "*.head": "colwise"}
WIDTH, WORDS = 64, 128


class Block(nn.Module):
    """The half of a transformer's layer without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Language(Objective):
    phases = (Phase(name="fit", players=(Player(network="network", loss="loss"),)),)

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential()
        self.network.embed = nn.Embedding(WORDS, WIDTH)
        self.network.blocks = nn.Sequential(Block())
        self.network.head = nn.Linear(WIDTH, WORDS)

    def share(self, batch):
        return {"logit": self.network(batch["token"])}

    def loss(self, shared, batch):
        return F.cross_entropy(shared["logit"].flatten(0, 1), batch["token"].flatten().long()), {}


def compiled_step(shape: str, remat: tuple[str, ...]):
    """Bytes that the step sends by kind, its program and arguments."""
    torch.manual_seed(0)
    objective, mesh = Language(), meshes.make_mesh(MeshShape.parse(shape))
    model, optimizers = convert(objective, StepConfig(), remat=remat), {"network": optax.sgd(0.1)}
    state = init_state(model, optimizers, exported="network", seed=0, ema=False)
    shardings = meshes.tree_shardings(state, mesh, RULES)
    state = meshes.place(state, shardings)
    tokens = np.random.default_rng(0).integers(0, WORDS, (8, 32)).astype(np.int32)
    batch = meshes.place_batch({"token": tokens}, mesh)
    step = TrainStep(model, objective.phases[0], optimizers, prepare=lambda b, _: b, mesh=mesh)
    program = jax.jit(step, out_shardings=(shardings, None)).lower(state, batch).compile()
    sent: dict[str, int] = {}
    for collective in collectives(program.as_text() or ""):
        sent[collective.kind] = sent.get(collective.kind, 0) + collective.bytes
    return sent, program, (state, batch)


@pytest.mark.parametrize(
    "remat", [(), pytest.param(("network.blocks.*",), marks=pytest.mark.slow)], ids=str
)
def test_weights_are_gathered_instead_of_activations_summed(remat, monkeypatch):
    sent, program, arguments = compiled_step("fsdp=4,tensor=2", remat)
    monkeypatch.setattr(gradients, "split_activations", lambda *_: contextlib.nullcontext())
    before, _, _ = compiled_step("fsdp=4,tensor=2", remat)
    assert sent["all-reduce"] < before["all-reduce"] / 2
    assert sum(sent.values()) < 0.9 * sum(before.values())

    batch = {"token": torch.tensor(np.asarray(arguments[1]["token"]))}
    state, metrics = program(*arguments)
    torch.manual_seed(0)
    objective = Language()
    loss, _ = objective.loss(objective.share(batch), batch)
    loss.backward()
    torch.optim.SGD(objective.parameters(), lr=0.1).step()
    # float32 sums in another order
    np.testing.assert_allclose(metrics["network/loss"], loss.item(), rtol=1e-6)
    for name, tensor in objective.named_parameters():
        array = tensor.detach().numpy()
        np.testing.assert_allclose(state.params[name], array, atol=1e-6, err_msg=name)


class Kinds(nn.Module):
    """Submodules whose results are of every kind; what they are stated to be is in the program."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(8, 3))
        self.rows, self.same, self.turned = Given(), nn.Identity(), Given()
        self.fixed, self.one, self.pair = Given(), Given(), Given()

    def forward(self, x):
        y = self.rows(x + 1)
        self.same(y).add_(1)  # the same memory
        self.turned(y.transpose(0, 1))
        self.fixed(self.table * 2)
        self.one(y.sum())
        return self.pair((y[:, 0], {"a": 2 * y}))


class Given(nn.Module):
    """Returns what it gets."""

    def forward(self, x):
        return x


def stated(rows: int, mesh) -> list[tuple[int, PartitionSpec]]:
    """Rank and sharding of what is stated for a batch of so many rows."""
    model = to_jax(Kinds())

    def run(x):
        with meshes.split_activations(mesh, x):
            return model.apply({}, model.buffers, x)[0]

    x = jax.ShapeDtypeStruct((rows, 3, 5), np.float32)
    equations = jax.make_jaxpr(run)(x).eqns
    statements = [e for e in equations if e.primitive.name == "sharding_constraint"]
    return [(e.outvars[0].aval.ndim, e.params["sharding"].spec) for e in statements]


def test_only_results_with_the_rows_of_the_batch_are_stated():
    mesh = meshes.make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
    free, rows = PartitionSpec.UNCONSTRAINED, ("data", "fsdp")
    three, two = (3, PartitionSpec(rows, free, free)), (2, PartitionSpec(rows, free))
    # rows, same (a second time), both of the pair, and both again as the whole module's
    assert stated(8, mesh) == [three, three, two, three, two, three]
    assert stated(6, mesh) == []  # four devices cannot share six rows
    assert stated(8, meshes.make_mesh(MeshShape(data=4, fsdp=2))) == []  # XLA does by itself


def test_writes_into_results_are_seen_as_before():
    mesh, model = meshes.make_mesh(MeshShape(fsdp=4, tensor=2)), to_jax(Kinds())
    x = np.random.default_rng(0).standard_normal((8, 3, 5), np.float32)
    with meshes.split_activations(mesh, x):
        (first, second), _ = model.apply({}, model.buffers, x)
    (expected, also), _ = model.apply({}, model.buffers, x)
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second["a"], also["a"])
    theirs = Kinds()(torch.from_numpy(x))
    np.testing.assert_allclose(first, theirs[0], rtol=1e-6)
