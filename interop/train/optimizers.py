# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""optax optimisers that take the same steps as `torch.optim`'s, and the schedule both follow.

optax and torch agree on Adam's formula but not on weight decay in plain Adam, on SGD's dampening,
on Adagrad's start and epsilon, or on where clipping adds its epsilon. The tests hold 50 steps of
each against torch. References: Kingma & Ba 2015; Loshchilov & Hutter 2019; Duchi et al. 2011.
"""

import difflib
import importlib
import inspect
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from optax.contrib import ScheduleFreeState, schedule_free_eval_params

from jaxsr.interop.errors import InputError, first_line
from jaxsr.interop.json_text import json_object
from jaxsr.interop.train.options import OptimizerConfig
from jaxsr.interop.train.packing import norm


class Elementwise(optax.GradientTransformationExtraArgs):
    """An optimiser to which it does not matter how its elements are shared out among arrays.

    It updates each by itself, or by a common value of all, as clipping by the global norm does.
    """


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate as a function of the number of updates done, over `steps` updates.

    Raises:
      InputError: optax has no such schedule, or it takes other arguments.
    """
    span = max(steps - config.warmup_steps, 1)
    main: optax.Schedule
    match config.schedule:
        case "cosine":
            main = optax.cosine_decay_schedule(config.lr, span, alpha=config.final_lr / config.lr)
        case "exponential":
            main = optax.exponential_decay(config.lr, span, config.final_lr / config.lr)
        case "multistep":
            updates = [round(m * steps if m < 1 else m) for m in config.milestones]
            # Counted from the end of the warm-up, as `join_schedules` counts; milestones that meet
            # there, or equal ones, each have their factor.
            counted = Counter(max(update - config.warmup_steps, 0) for update in updates)
            factors = {update: config.gamma**times for update, times in counted.items()}
            main = optax.piecewise_constant_schedule(config.lr, factors)
        case "wsd":
            fall = min(max(round(config.decay_share * steps), 1), span)
            main = optax.linear_schedule(config.lr, config.final_lr, fall, span - fall)
        case "constant":
            main = optax.constant_schedule(config.lr)
        case _:
            main = _schedule_of_optax(config, span)
    if not config.warmup_steps:
        return main
    # torch's LinearLR never starts at exactly 0 either: a first update of size 0 is wasted.
    rise = optax.linear_schedule(
        config.lr / config.warmup_steps, config.lr, max(config.warmup_steps - 1, 1)
    )
    return optax.join_schedules([rise, main], [config.warmup_steps])


def _of_optax(name: str) -> tuple[Any, list[str]]:
    """A function of optax by its name `optax:lion`, and its parameters, which may be empty."""
    where, _, attribute = name.partition(":")
    function: Any = getattr(importlib.import_module(where), attribute, None)
    return function, list(inspect.signature(function).parameters) if callable(function) else []


def _meant(name: str) -> str:
    """The name in either module of optax that is nearest to one that neither has."""
    attribute = name.partition(":")[2]
    places = {
        other: module.__name__
        for module in (optax.contrib, optax)
        for other in dir(module)
        if other[0].islower() and inspect.isfunction(getattr(module, other))
    }
    near = difflib.get_close_matches(attribute, list(places), n=1, cutoff=0.7)
    meant = f"{places[near[0]]}:{near[0]}" if near else name
    return "" if meant == name else f" (did you mean {meant}?)"


def _schedule_of_optax(config: OptimizerConfig, span: int) -> optax.Schedule:
    """A schedule by its name, over `span` updates."""
    maker, takes = _of_optax(config.schedule)
    rates = [each for each in ("peak_value", "init_value", "value") if each in takes]
    if not rates:
        raise InputError(
            f"schedule {config.schedule} is not one of optax {optax.__version__} with a peak or "
            f"first value{_meant(config.schedule)}; give another name, or return an optimiser with "
            "it from your task's optimizer method"
        )
    defaults = {"init_value": 0.0} if rates[0] == "peak_value" and "init_value" in takes else {}
    lengths = {each: span for each in ("transition_steps", "decay_steps") if each in takes}
    stated: dict[str, Any] = json_object("schedule_args", config.schedule_args)
    try:
        for key, value in stated.items():
            if key == "boundaries_and_scales":  # JSON has no numbers as names
                stated[key] = {int(update): factor for update, factor in value.items()}
        made: Any = maker(**{rates[0]: config.lr, **defaults, **lengths, **stated})
        values = [float(made(update)) for update in (0, span // 2, span - 1)]
    except Exception as error:
        raise InputError(
            f"schedule {config.schedule} does not take {config.schedule_args or 'no arguments'} "
            f"({first_line(error)}); it has {', '.join(takes)}"
        ) from error
    if not all(0 <= value < math.inf for value in values):
        raise InputError(
            f"schedule {config.schedule} has the learning rate {min(values):g} within the run; "
            "correct schedule_args"
        )
    return made


def make_optimizer(
    config: OptimizerConfig, steps: int, lr_factors: Mapping[str, float] | None = None
) -> optax.GradientTransformation:
    """The optax optimiser that matches `torch.optim` for this configuration, or the one it names.

    Args:
      config: rule, hyper-parameters and schedule.
      steps: updates that the schedule spans.
      lr_factors: factors of the learning rate by parameter; others have the schedule's rate.

    Raises:
      InputError: optax has no such rule, or it takes other arguments.
    """
    parts: list[optax.GradientTransformation] = []
    if config.clip_norm is not None:
        parts.append(clip_by_global_norm(config.clip_norm))
    if ":" in config.optimizer:
        parts.append(_rule_of_optax(config, make_schedule(config, steps)))
        if lr_factors and ":schedule_free" in config.optimizer:
            raise InputError(
                f"optimizer {config.optimizer} averages its own steps, which factors of the "
                "learning rate would not reach; leave out --lr-factor"
            )
        if lr_factors:
            parts.append(_scale_each(lr_factors))
        return optax.chain(*parts, _counting())
    decay = config.weight_decay
    if decay and config.optimizer != "adamw":
        parts.append(optax.add_decayed_weights(decay))
    match config.optimizer:
        case "adam" | "adamw":
            parts.append(optax.scale_by_adam(*config.betas, eps=config.epsilon))
        case "adagrad":
            parts.append(scale_by_adagrad(eps=config.epsilon))
        case _:  # sgd
            if config.momentum:
                parts.append(
                    scale_by_momentum(
                        config.momentum, dampening=config.dampening, nesterov=config.nesterov
                    )
                )
    if decay and config.optimizer == "adamw":
        parts.append(optax.add_decayed_weights(decay))
    if lr_factors:
        parts.append(_scale_each(lr_factors))
    parts.append(optax.scale_by_learning_rate(make_schedule(config, steps)))
    optimizer = optax.chain(*parts)
    return optimizer if lr_factors else Elementwise(*optimizer)


def _counting() -> optax.GradientTransformation:
    """Changes nothing; `updates_done` reads its state."""
    return optax.scale_by_schedule(lambda count: 1.0)


def _rule_of_optax(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    rule, takes = _of_optax(config.optimizer)
    if "learning_rate" not in takes:
        raise InputError(
            f"optimizer {config.optimizer} is not a rule of optax {optax.__version__} with a "
            f"learning rate{_meant(config.optimizer)}; give another name, or return it from your "
            "task's optimizer method"
        )
    arguments = json_object("optimizer_args", config.optimizer_args)
    if config.weight_decay and "weight_decay" in takes:
        arguments = {"weight_decay": config.weight_decay, **arguments}
    elif config.weight_decay:
        raise InputError(f"optimizer {config.optimizer} takes no weight_decay; leave it at 0")
    # A rule looks at its arguments at the first update, if ever.
    weights = {"weight": jax.ShapeDtypeStruct((4, 4), jnp.float32)}

    def update(weights: optax.Params) -> Any:
        return made.update(weights, made.init(weights), weights)

    try:
        made: Any = rule(schedule, **arguments)
        jax.eval_shape(update, weights)
    except Exception as error:
        raise InputError(
            f"optimizer {config.optimizer} does not take "
            f"{config.optimizer_args or 'a step without arguments'} "
            f"({first_line(error)}); it has {', '.join(takes[1:])}; a rule that needs more than "
            "gradients is not offered by name"
        ) from error
    return made


def _scale_each(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Multiplies each update of a dictionary by its factor."""

    def scaled(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        trees: Any = updates
        return {name: update * factors.get(name, 1.0) for name, update in trees.items()}

    return optax.stateless(scaled)


def has_own_average(state: optax.OptState) -> bool:
    """Whether a rule of the kind `schedule_free` moves the weights: it validates others."""
    return bool(_schedule_free_states(state))


def validated_params(state: optax.OptState, params: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The parameters to validate and export: those trained, or a schedule-free rule's average.

    Args:
      state: of the parameters' optimiser.
      params: as the step trains them.

    Raises:
      InputError: such a rule moves a part of the parameters alone.
    """
    for rule in _schedule_free_states(state):
        if jax.tree.structure(rule.z) != jax.tree.structure(params):
            raise InputError(
                "a schedule-free rule must move all parameters of its network; leave out "
                "optax.masked and optax.multi_transform around it"
            )
        params = schedule_free_eval_params(rule, params)
    return params


def _schedule_free_states(state: optax.OptState) -> list[Any]:
    def is_one(node: Any) -> bool:
        return isinstance(node, ScheduleFreeState)

    return [node for node in jax.tree.leaves(state, is_leaf=is_one) if is_one(node)]


def updates_done(state: optax.OptState) -> jax.Array:
    """Updates that an optimiser of `make_optimizer` has made, from its state."""
    return state[-1].count  # type: ignore[index]  # the schedule is the last link of the chain


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Clips as `torch.nn.utils.clip_grad_norm_` does: scale by min(1, max_norm / (norm + 1e-6))."""

    def clipped(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        scale = jnp.minimum(1.0, max_norm / (norm(updates) + 1e-6))

        def clip(g: jax.Array) -> jax.Array:
            return g * scale.astype(g.dtype)

        return jax.tree.map(clip, updates)

    return optax.stateless(clipped)


def _zeros(x: jax.Array) -> jax.Array:
    return jnp.zeros_like(x)


class AdagradState(NamedTuple):
    """Sum of squared gradients, one array a parameter."""

    sum_of_squares: optax.Updates


def scale_by_adagrad(*, eps: float = 1e-10) -> optax.GradientTransformation:
    """Adagrad as torch has it: the sum starts at 0 and eps stands outside the root.

    `optax.scale_by_rss` starts at 0.1 and adds its eps inside the root.
    """

    def init(params: optax.Params) -> AdagradState:
        return AdagradState(jax.tree.map(_zeros, params))

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, AdagradState]:
        def grown(s: jax.Array, g: jax.Array) -> jax.Array:
            return s + g * g

        def scaled(g: jax.Array, s: jax.Array) -> jax.Array:
            return g / (jnp.sqrt(s) + eps)

        total = jax.tree.map(grown, state.sum_of_squares, updates)
        return jax.tree.map(scaled, updates, total), AdagradState(total)

    return optax.GradientTransformation(init, update)


class MomentumState(NamedTuple):
    """Running momentum and the number of updates."""

    momentum: optax.Updates
    # Under this name the field is part of checkpoints.
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def scale_by_momentum(
    decay: float, *, dampening: float = 0.0, nesterov: bool = False
) -> optax.GradientTransformation:
    """SGD's momentum as torch has it: the first update is not dampened."""

    def init(params: optax.Params) -> MomentumState:
        return MomentumState(jax.tree.map(_zeros, params), jnp.zeros((), jnp.int32))

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, MomentumState]:
        weight = jnp.where(state.count == 0, 1.0, 1.0 - dampening)

        def grown(m: jax.Array, g: jax.Array) -> jax.Array:
            return decay * m + weight.astype(g.dtype) * g

        def ahead(g: jax.Array, m: jax.Array) -> jax.Array:
            return g + decay * m

        momentum = jax.tree.map(grown, state.momentum, updates)
        step = jax.tree.map(ahead, updates, momentum) if nesterov else momentum
        return step, MomentumState(momentum, state.count + 1)

    return optax.GradientTransformation(init, update)
