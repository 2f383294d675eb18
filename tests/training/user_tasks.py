# type: ignore  # written as users write, without annotations
"""Tasks of a user, right and wrong ones: `test_task.py` trains them from a copy."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import jaxsr
from jaxsr.interop.train.objective import Objective, Phase, Player


class Points(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(count)
        self.x = rng.standard_normal((count, 3)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = torch.from_numpy(self.x[index])
        return x + 0.01 * torch.randn(3), x.sum(0, keepdim=True)


class Fit(jaxsr.Task):
    class Config(jaxsr.TaskConfig):
        batch = 8
        steps = 6
        lr = 1e-2
        width: int = 5
        """Width of the hidden layer."""

    metric = "error"

    def network(self):
        layers = [
            nn.Sequential(nn.Linear(self.config.width, self.config.width), nn.Tanh())
            for _ in range(2)
        ]
        ends = nn.Linear(3, self.config.width), nn.Linear(self.config.width, 1)
        network = nn.Sequential(ends[0], nn.Dropout(0.1), nn.Sequential(*layers), ends[1])
        network.register_buffer("calls", torch.zeros(()), persistent=False)
        return network

    def loss(self, network, batch):
        network.calls += 1
        loss = F.mse_loss(network(batch["x"]), batch["y"])
        return loss, {"rms": loss.detach().sqrt(), "calls": network.calls.clone()}

    def metrics(self, network, batch):
        error = (network(batch["x"]) - batch["y"]).abs()
        return {"error": error.mean(), "ratio": (error.sum(), batch["y"].abs().sum())}

    def pictures(self, network, batch):
        return network(batch["x"])[..., None, None].expand(-1, 3, 4, 4)

    def train_data(self):
        return Points(20)

    def validation_data(self):
        return Points(13)


class CountsInFile(Fit):
    def loss(self, network, batch):
        global CALLS  # noqa: PLW0603  what it is refused for
        CALLS += 1
        return F.mse_loss(network(batch["x"]), batch["y"]) * CALLS


CALLS = 0


class CountsInClass(Fit):
    calls = 0

    def loss(self, network, batch):
        self.calls += 1
        return F.mse_loss(network(batch["x"]), batch["y"]) * self.calls


class Annealing:
    def __init__(self):
        self.temperature = 1.0

    def __call__(self):
        self.temperature *= 0.9
        return self.temperature


class AnnealsInObject(Fit):
    def __init__(self, config):
        super().__init__(config)
        self.anneal, self.schedule = Annealing(), {"name": ("warm",)}

    def loss(self, network, batch):
        return F.mse_loss(network(batch["x"]), batch["y"]) * self.anneal()


class KeepsTuple(AnnealsInObject):
    def loss(self, network, batch):
        self.schedule["name"] += ("warm",)
        return F.mse_loss(network(batch["x"]), batch["y"]) * len(self.schedule["name"])


class CallsBackward(Fit):
    def loss(self, network, batch):
        loss = F.mse_loss(network(batch["x"]), batch["y"])
        if network.training:
            loss.backward()
        return loss


class CountsFromTheFirstLoss(Fit):
    def loss(self, network, batch):
        self.calls = getattr(self, "calls", 0) + 1
        return F.mse_loss(network(batch["x"]), batch["y"]) * self.calls

    def validation_data(self):
        return None


class CountsInTensor(Fit):
    def loss(self, network, batch):
        self.scale = getattr(self, "scale", torch.zeros(1)) + 1
        return F.mse_loss(network(batch["x"]), batch["y"]) * self.scale.mean()


class KeepsList(Fit):
    def __init__(self, config):
        super().__init__(config)
        self.seen = [0.0]

    def loss(self, network, batch):
        self.seen.append(1.0)
        return F.mse_loss(network(batch["x"]), batch["y"])


class KeepsLoss(Fit):
    average = None

    def loss(self, network, batch):
        loss = F.mse_loss(network(batch["x"]), batch["y"])
        self.average = loss if self.average is None else (self.average + loss.detach()) / 2
        return self.average


class MakesBuffer(Fit):
    def loss(self, network, batch):
        if not hasattr(network, "count"):
            network.register_buffer("count", torch.zeros(()))
        if network.training:
            network.count += 1
        return F.mse_loss(network(batch["x"]), batch["y"]) * network.count


class NumpyNoise(Fit):
    def loss(self, network, batch):
        return F.mse_loss(network(batch["x"] + float(np.random.rand())), batch["y"])


class ArrayInMetadata(Fit):
    metadata = {"mean": np.ones(3)}  # noqa: RUF012


class WordInMetadata(Fit):
    metadata = {"channels": "three"}  # noqa: RUF012


class NoFigures(Fit):
    def metrics(self, network, batch):
        pass


class FlatPictures(Fit):
    def pictures(self, network, batch):
        return network(batch["x"])


class Vector(Fit):
    def loss(self, network, batch):
        return network(batch["x"]) ** 2


class Nothing(Fit):
    def loss(self, network, batch):
        network(batch["x"])


class Apart(Fit):
    def loss(self, network, batch):
        return F.mse_loss(network(batch["x"]).detach(), batch["y"])


class Infinite(Fit):
    def loss(self, network, batch):
        return F.mse_loss(network(batch["x"]), batch["y"]) / 0


class NothingHeldOut(Fit):
    def validation_data(self):
        return []


class ShortPoints(Points):
    def __getitem__(self, index):
        if index > 10:
            raise IndexError
        return super().__getitem__(index)


class ShortHeldOut(Fit):
    def validation_data(self):
        return ShortPoints(13)


class OneArgument(Fit):
    def loss(self, batch):
        return batch["y"].mean()


class Biggest(Fit):
    best = "biggest"


class Counts(Fit):
    def __init__(self, config):
        super().__init__(config)
        self.calls = 0

    def loss(self, network, batch):
        self.calls += 1
        return self.calls * F.mse_loss(network(batch["x"]), batch["y"])


class Shapes(Fit):
    def network(self):
        return nn.Linear(4, 1)


class Names(Fit):
    def metrics(self, network, batch):
        return {"error": batch["z"]}


class NotScalar(Fit):
    def metrics(self, network, batch):
        return {"error": network(batch["x"])}


class NoMetric(Fit):
    metric = "iou"


class NoNetwork(Fit):
    def network(self):
        return 5


class Lazy(Fit):
    def network(self):
        return nn.LazyLinear(1)


class Fails(Fit):
    def network(self):
        raise OSError("no weights")


class NoData(jaxsr.Task):
    pass


class NoOptions(Fit):
    Config = dict


class Plain:
    pass


class Pair(Objective):
    """A generator and a critic, after a phase without the critic."""

    phases = (
        Phase(name="warmup", players=(Player(network="generator", loss="distance"),)),
        Phase(
            name="main",
            players=(
                Player(network="generator", loss="fooling"),
                Player(network="critic", loss="telling", through_shared=False),
            ),
        ),
    )

    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(3, 1), nn.Linear(1, 1)

    def share(self, batch):
        return {"made": self.generator(batch["x"])}

    def distance(self, shared, batch):
        return F.mse_loss(shared["made"], batch["y"]), {}

    def fooling(self, shared, batch):
        return F.softplus(-self.critic(shared["made"])).mean(), {}

    def telling(self, shared, batch):
        real, made = self.critic(batch["y"]), self.critic(shared["made"])
        return (F.softplus(-real) + F.softplus(made)).mean(), {}


class Gan(Fit):
    loss = jaxsr.Task.loss
    exported = "generator"

    def objective(self):
        return Pair()

    def phases(self, objective):
        return ("warmup", 2), ("main", self.config.total_steps - 2)


class PenalisedPair(Pair):
    """With the critic and the gradient penalty of WGAN-GP."""

    phases = (Pair.phases[1],)

    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    def telling(self, shared, batch):
        real, made = batch["y"], shared["made"]
        mixed = (0.25 * real + 0.75 * made).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        difference = self.critic(made).mean() - self.critic(real).mean()
        return difference + 10 * penalty, {"penalty": penalty.detach()}


class PenalisedGan(Gan):
    def objective(self):
        return PenalisedPair()

    def phases(self, objective):
        return (("main", self.config.total_steps),)


class Potential(nn.Module):
    """An energy and, as its gradient, the force."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 6), nn.SiLU(), nn.Linear(6, 1))

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.energy(x)
            (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy, -slope


class Forces(Fit):
    pictures = jaxsr.Task.pictures

    def network(self):
        return Potential()

    def loss(self, network, batch):
        x = batch["x"].clone().requires_grad_()
        energy, force = network(batch["x"])
        (slope,) = torch.autograd.grad(network.energy(x).sum(), x, create_graph=True)
        error = F.mse_loss(energy, batch["y"]) + F.mse_loss(force, batch["x"].cos())
        return error + slope.square().mean()

    def metrics(self, network, batch):
        return {"error": (network(batch["x"])[1] - batch["x"].cos()).abs().mean()}


class GanThatEndsLater(Gan):
    def objective(self):
        class Broken(Pair):
            def fooling(self, shared, batch):
                return super().fooling(shared, batch)[0] * batch["weight"]

        return Broken()


class GanWithoutPhases(Gan):
    phases = jaxsr.Task.phases


class NoBlocks(Fit):
    def network(self):
        return nn.Linear(3, 1)


class Damaged(Fit):
    def train_data(self):
        items = [{"x": np.ones(3), "y": np.ones(1)}] * 32
        return [*items[:-1], {"x": np.full(3, np.nan), "y": np.ones(1)}]


class NoLength(Fit):
    def train_data(self):
        return lambda step: {"x": np.ones((8, 3)), "y": np.ones((8, 1))}
