"""Options of the optimiser and of the step, checked at construction; they load no framework."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxsr.interop.errors import InputError
from jaxsr.interop.fields import check_fields, number
from jaxsr.interop.json_text import json_object

OPTIMIZERS = ("adam", "adamw", "sgd", "adagrad")
SCHEDULES = ("constant", "cosine", "exponential", "multistep", "wsd")
_OF_OPTAX = r"optax(\.contrib)?:[a-z]\w*"


def _one_of(known: tuple[str, ...], default: str) -> Any:
    """Field for one of these names, which shells complete, or for a name of optax."""
    pattern = f"^({'|'.join(known)}|{_OF_OPTAX})$"
    return field(default=default, metadata={"names": known, "pattern": pattern})


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimiser, schedule and clipping, for both engines."""

    optimizer: str = _one_of(OPTIMIZERS, "adamw")
    """Update rule: adam, adamw, sgd or adagrad, as in torch.optim; or, in JAX, a rule of optax by
    its name: optax:lion, optax.contrib:muon."""
    optimizer_args: str = ""
    """Arguments of an optax rule, as a JSON object: {"b2": 0.98}. The rule gets lr, and
    weight_decay if it takes it."""
    lr: float = number(1e-4, above=0)
    """Peak learning rate."""
    betas: tuple[float, float] = number((0.9, 0.999), least=0, below=1)
    """Decay of Adam's first and second moments."""
    eps: float | None = None
    """Added to the denominator. Default: torch's, 1e-8 for Adam and 1e-10 for Adagrad."""
    weight_decay: float = number(0.0, least=0)
    """Decay of the weights: decoupled in adamw, part of the gradient in the others, as in torch."""
    momentum: float = number(0.0, least=0)
    """SGD's momentum."""
    dampening: float = 0.0
    """SGD's dampening of the momentum."""
    nesterov: bool = False
    """SGD with Nesterov's momentum."""
    schedule: str = _one_of(SCHEDULES, "constant")
    """Learning rate over the run: constant; cosine or exponential, falling to --final-lr;
    multistep, multiplied by --gamma at each of --milestones; wsd, constant, then linear to
    --final-lr over the last --decay-share of the run; or a schedule of optax by its name:
    optax:cosine_onecycle_schedule."""
    schedule_args: str = ""
    """Arguments of an optax schedule, as a JSON object: {"pct_start": 0.2}. Unless they say
    otherwise, its peak or first value is --lr, and it lasts as long as the run."""
    warmup_steps: int = number(0, least=0)
    """Updates over which the learning rate rises linearly from 0."""
    final_lr: float = number(0.0, least=0)
    """Learning rate at the end of cosine, exponential and wsd."""
    milestones: tuple[float, ...] = number((), above=0)
    """With multistep: numbers of updates or, below 1, shares of the run."""
    gamma: float = number(0.5, above=0, most=1)
    """With multistep: factor of the learning rate at each milestone."""
    decay_share: float = number(0.2, above=0, most=1)
    """With wsd: share of the run over which the learning rate falls."""
    clip_norm: float | None = number(None, above=0)
    """Largest global norm of one network's gradient. Default: no clipping."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_named("optimizer", self.optimizer, OPTIMIZERS, self.optimizer_args)
        _check_named("schedule", self.schedule, SCHEDULES, self.schedule_args)
        self._check_schedule()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise InputError("nesterov needs a momentum above 0 and a dampening of 0")

    def _check_schedule(self) -> None:
        for milestone in self.milestones:
            if milestone > 1 and milestone != int(milestone):
                raise InputError(
                    f"milestones are whole updates, or shares of the run below 1, got {milestone}"
                )
        if self.schedule == "multistep" and not self.milestones:
            raise InputError("schedule=multistep needs milestones; give --milestones 0.5 0.75")
        if self.schedule == "exponential" and not self.final_lr > 0:
            raise InputError("schedule=exponential never reaches 0; give --final-lr above 0")

    @property
    def epsilon(self) -> float:
        if self.eps is not None:
            return self.eps
        return 1e-10 if self.optimizer == "adagrad" else 1e-8


def _check_named(option: str, name: str, known: tuple[str, ...], arguments: str) -> None:
    if name not in known and not re.fullmatch(_OF_OPTAX, name):
        raise InputError(
            f"{option} must be one of {', '.join(known)}, optax:NAME or optax.contrib:NAME, got "
            f"{name!r:.80}"
        )
    if name in known and arguments:
        raise InputError(
            f"{option}_args are for those of optax, got {arguments!r:.80} for {name}; use the "
            "other options"
        )
    json_object(f"{option}_args", arguments)


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """Options of the step, in addition to the objective."""

    batch_norm: Literal["global", "local"] = "global"
    """Statistics over the global batch, or over each device's rows."""
    accumulate: int = number(1, least=1)
    """Number of slices of a batch; gradients are averaged over them before the update."""
    ema: float = number(0.0, least=0, below=1)
    """Decay of the moving average of the exported network's parameters, at step t at most
    (1 + t)/(10 + t); 0 turns it off."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the networks' computation; parameters, losses and updates stay float32."""
    lane_folding: Literal["auto", "on", "off"] = "auto"
    """Fold columns into a TPU's lanes in narrow convolutions. auto: on TPUs; on CPUs, channels
    last."""

    def __post_init__(self) -> None:
        check_fields(self)

    def per_device(self, *, model_devices: int) -> bool:
        """Whether the step is written out for each device, rather than partitioned by XLA.

        Args:
          model_devices: devices that share one replica of the parameters.
        """
        return self.batch_norm == "local" or (self.dtype != "float32" and model_devices == 1)

    def check_fits(self, mesh: Mapping[str, int]) -> None:
        """Refuses a mesh of these sizes if the step cannot run on it.

        Raises:
          ValueError: local BatchNorm with split parameters.
        """
        split = {axis: size for axis, size in mesh.items() if axis != "data" and size > 1}
        if self.batch_norm == "local" and split:
            listed = ", ".join(f"{axis}={size}" for axis, size in split.items())
            raise InputError(
                f"batch_norm=local needs whole parameters on every device, but the mesh has "
                f"{listed}; use batch_norm=global, or --mesh {math.prod(mesh.values())}"
            )
