"""Training from existing weights: `--init`, `--freeze` and `--lr-factor`.

Patterns are `fnmatch`'s, over the names of the exported network. A frozen parameter has neither
gradient, update nor optimiser state. A BatchNorm whose statistics match a pattern of `freeze`
normalises with them even in training, and never updates them: `encoder.*` freezes parameters and
statistics.
"""

import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from jaxsr.errors import InputError, first_of
from jaxsr.models.weight_files import (
    copy_sound,
    names_of_tensors,
    read_weights,
    under_names_of,
)
from jaxsr.models.weight_sources import weights_file
from jaxsr.training.config import RunConfig


def prepare_network(
    network: nn.Module, config: RunConfig, *, has_weights: bool = False
) -> list[str]:
    """Loads and freezes weights as the configuration says; changes the network in place.

    A run that continues another's checkpoint (`branch_from`) has its weights already, and compiling
    ahead of time needs none.

    Args:
      network: of the task.
      config: the run's configuration.
      has_weights: the run goes on with its own checkpoint, and `init` may be gone.

    Returns:
      Lines that tell a person what was done.

    Raises:
      InputError: no weight fits, a pattern matches nothing, or no parameter is left to train.
      FileNotFoundError: the weights to start from do not exist.
    """
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError(
            f"the network {type(network).__name__} has no parameter to train; make them "
            "nn.Parameter (or layers) in attributes or nn.ModuleList, with requires_grad"
        )
    lines = []
    has_weights |= config.branch_from is not None
    if config.init is not None and not has_weights and config.aot is None:
        named = getattr(config, "network", None)
        lines += initialise(network, config.init, named=named)
    if config.freeze:
        lines.append(freeze(network, config.freeze))
    learning_rate_factors(network, config.lr_factor)  # raises if a pattern matches nothing
    return lines


def initialise(network: nn.Module, source: Path, *, named: str | None = None) -> list[str]:
    """Copies the weights whose name and shape match.

    Args:
      network: changed in place.
      source: as for `jaxsr.models.weight_sources.weights_file`.
      named: the user's name of the network.

    Returns:
      Lines that list what was loaded and what did not fit.

    Raises:
      InputError: no tensor fits, or `copy_sound` refuses one that does.
      FileNotFoundError: there is no such file.
    """
    path = weights_file(source, network=named, option="--init")
    weights = under_names_of(network, read_weights(path))
    state = network.state_dict()
    fitting = {n: w for n, w in weights.items() if n in state and w.shape == state[n].shape}
    misshapen = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(state[name].shape)}"
        for name in weights
        if name in state and name not in fitting
    ]
    if not any(n in fitting for n, _ in network.named_parameters()):
        seen = first_of(misshapen) or first_of(weights)
        raise InputError(
            f"init={source}: no parameter fits the network, whose first are {first_of(state)}; "
            f"the file has {seen}; give weights of this network"
        )
    copy_sound(network, fitting, source=str(path))
    tensors = names_of_tensors(network)
    initialised = {tensors[name] for name in fitting}
    total = len({*tensors.values()})
    lines = [f"initialised {len(initialised)} of {total} tensors from {path}"]
    groups = {
        "kept their initial values": [
            names[0] for names in dict.fromkeys(tensors.values()) if not {*names} & {*weights}
        ],
        "have another shape in the file": misshapen,
        "of the file are not the network's": [n for n in weights if n not in state],
    }
    lines += [
        f"  {len(names)} {what}: {first_of(names)}" for what, names in groups.items() if names
    ]
    return lines


def freeze(network: nn.Module, patterns: Sequence[str]) -> str:
    """Excludes matching parameters, and matching statistics of BatchNorm, from training.

    Args:
      network: changed in place.
      patterns: patterns of names.

    Returns:
      A line that says what was frozen.

    Raises:
      InputError: a pattern matches no parameter, or nothing is left to train.
    """
    parameters = dict(network.named_parameters())
    frozen = {name for pattern in patterns for name in _matching(parameters, pattern, "freeze")}
    for name in frozen:
        parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise InputError(
            f"freeze={' '.join(patterns)} leaves no parameter to train; freeze fewer of them"
        )
    fixed = 0
    for name, module in network.named_modules():
        statistics = f"{name}.running_mean"
        if isinstance(module, _NormBase) and _matches_any(statistics, patterns):
            fixed += 1
            kind = type(module)
            module.__class__ = type(f"Frozen{kind.__name__}", (_FixedStatistics, kind), {})
            module.eval()
    values = sum(parameters[name].numel() for name in frozen)
    norms = f", and the statistics of {fixed} normalisations" if fixed else ""
    return f"frozen: {len(frozen)} of {len(parameters)} parameters ({values:,} values){norms}"


class _FixedStatistics(nn.Module):
    """A normalisation that stays in evaluation mode."""

    def train(self, mode: bool = True) -> "_FixedStatistics":
        return super().train(False)


def learning_rate_factors(
    network: nn.Module, entries: Iterable[str], prefix: str = ""
) -> dict[str, float]:
    """Returns the factors of the learning rate by prefixed name; factors of 1 are left out.

    The first pattern that matches a name counts.

    Raises:
      InputError: an entry is not PATTERN=FACTOR, or its pattern matches nothing.
    """
    names = [name for name, _ in network.named_parameters()]
    factors: dict[str, float] = {}
    for pattern, factor in parse_factors(entries):
        for name in _matching(names, pattern, "lr_factor"):
            factors.setdefault(f"{prefix}{name}", factor)
    return {name: factor for name, factor in factors.items() if factor != 1.0}


def parse_factors(entries: Iterable[str]) -> list[tuple[str, float]]:
    """Parses patterns and factors from `PATTERN=FACTOR`.

    Raises:
      InputError: an entry is not of that form, or its factor is not above 0.
    """
    pairs = []
    for entry in entries:
        pattern, _, number = entry.rpartition("=")
        try:
            factor = float(number)
        except ValueError:
            factor = 0.0
        if not (pattern and 0 < factor < float("inf")):
            raise InputError(
                f"lr_factor must be PATTERN=FACTOR with a factor above 0, as head.*=10, got "
                f"{entry!r}; --freeze takes a parameter out of training"
            )
        pairs.append((pattern, factor))
    return pairs


def _matching(names: Iterable[str], pattern: str, option: str) -> list[str]:
    matches = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matches:
        raise InputError(
            f"{option}: {pattern!r} matches no parameter of the network; there are "
            f"{first_of(names, 6)}"
        )
    return matches


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
