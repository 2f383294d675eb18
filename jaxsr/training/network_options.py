"""Training user-supplied networks: built by name, tried in torch, compared with torch in JAX.

Before a run begins, one batch of random images goes through the network and its losses in torch. A
network that does not fit then gives a one-line error, not a failure inside a compiled program. With
the JAX engine, `jaxsr.check` also compares outputs and gradients with torch's.
"""

import inspect
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.interop.json_text import json_object
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.train.objective import Objective, check_objective
from jaxsr.models.build import build_network
from jaxsr.models.outputs import answer_of
from jaxsr.runtime.activity import is_quiet
from jaxsr.training.config import RunConfig
from jaxsr.training.presets.networks import NetworkOptions
from jaxsr.training.task_methods import PhaseTrial
from jaxsr.training.user_code import located

_ROUNDING = 1e-3
"""Relative error that rounding may cause in training through normalisations. Wrong code is further
off; `python -m jaxsr.check` judges by torch's own rounding."""
_CHECK_PX = 32
"""Least side of the images that compare JAX with torch: small, to compile in seconds."""


def build(config: NetworkOptions) -> nn.Module:
    """Builds the network with the initial values of its own code.

    Raises:
      InputError: no network is named, or it cannot be built.
    """
    if config.network is None:
        raise InputError(
            "this run needs a network: --network package.module:Class, or timm:, smp:, "
            "spandrel:NAME"
        )
    arguments = json_object("network_args", config.network_args)
    return build_network(config.network, arguments, option="--network").float()


def try_network(
    network: nn.Module,
    picture: Tensor,
    *,
    option: str,
    expected: tuple[int, ...],
    mend: str,
) -> None:
    """Runs the network in torch, in evaluation mode, and refuses an unusable result.

    The result must be an image that depends on the parameters.

    Args:
      network: unchanged.
      picture: a batch of one image.
      option: the user's name of the network, for errors.
      expected: shape that the result must have.
      mend: remedy for a result of another shape; `{}` stands for the shape.

    Raises:
      InputError: the network fails, or gives another result.
    """
    shape = tuple(picture.shape)
    try:
        inspect.signature(network.forward).bind(picture)
    except TypeError as error:
        raise InputError(
            f"{option}: forward takes more than one batch of images ({error}); wrap it in a "
            "module that gives it the rest"
        ) from error
    with located(f"{option} on images {shape}"):
        answer = answer_of(copy_module(network).eval()(picture), name=option)
        if tuple(answer.shape) != expected:
            raise InputError(
                f"{option} gives {tuple(answer.shape)} for images {shape}, not "
                f"{mend.format(expected)}"
            )
        if not torch.is_floating_point(answer):
            raise InputError(f"{option} gives {answer.dtype}; training needs floating point")
        if not answer.requires_grad and any(p.requires_grad for p in network.parameters()):
            raise InputError(
                f"{option} gives images that depend on no parameter that is trained; leave out "
                "detach(), .data, no_grad() and rounding"
            )


def try_losses(objective: Objective, batch: Mapping[str, Tensor], *, option: str) -> None:
    """Runs every loss of an objective in torch, once.

    Args:
      objective: unchanged.
      batch: at least two samples, as in the run.
      option: the user's name of the network, for errors.

    Raises:
      InputError: a loss fails, is not a scalar, or gives the network no gradient.
    """
    check_objective(objective)
    trial = copy_module(objective).train()
    shapes = ", ".join(f"{name} {tuple(batch[name].shape)}" for name in [*batch][:2])
    with torch.random.fork_rng(devices=[]), located(f"{option} in training on {shapes}"):
        for phase in trial.phases:
            PhaseTrial(trial, phase).losses(batch)


def check_in_jax(network: nn.Module, picture: Tensor, *, config: RunConfig, option: str) -> None:
    """Refuses a network that computes otherwise in JAX than in torch, rounding aside.

    Resumed runs skip this: they passed it when they began.

    Args:
      network: unchanged.
      picture: a small batch.
      config: the run's configuration.
      option: the user's name of the network, for errors.

    Raises:
      InputError: outputs, gradients or buffers differ, or an operation is not supported.
    """
    if config.engine != "jax" or config.aot is not None or config.resume:
        return
    import jax

    from jaxsr.comparison.check_module import check

    if jax.process_index() == 0 and not is_quiet():
        shape = "×".join(map(str, picture.shape))
        line = f"comparing {option} in JAX with torch on {shape} (--no-check skips this)"
        print(line, flush=True)
    result = check(
        network, picture, name=option, vmap=False, mesh=1, speed_s=0, train=True, gradients=True
    )
    for row in result.rows:
        if row.status in ("failed", "refused") and row.required:
            reason = f"{row.name}: {row.detail}"
        elif row.status == "differs" and (row.worst is None or row.worst.error > _ROUNDING):
            error = f" of {row.worst.name} is off by {row.worst.error:.1e}" if row.worst else ""
            fault = result.fault
            where = f", first in {fault.path or 'the network'} ({fault.kind})" if fault else ""
            reason = f"{row.name}{error}{where} {row.detail}".rstrip()
        else:
            continue
        raise InputError(
            f"{option} does not compute in JAX as in torch: {reason}; change that line, train "
            "with --engine torch, or train anyway with --no-check"
        )


def check_side(multiple: int) -> int:
    """Side in pixels of the images that compare JAX with torch.

    It is at least twice the multiple: the coarsest features then have more than one pixel, as
    instance normalisation requires.
    """
    return max(-(-_CHECK_PX // multiple), 2) * multiple


def random_pictures(*size: int, seed: int = 0) -> Tensor:
    """Returns noise in 0…1."""
    return torch.rand(*size, generator=torch.Generator().manual_seed(seed))
