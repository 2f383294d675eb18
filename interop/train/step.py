# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""One training step of an objective's phase, as a pure function of the training state.

Everything between the batch of uint8 and the new state is inside: preparation, the torch modules
as pure functions, every player's loss and gradient, the optimiser updates and the moving average.
Under `jit` on a mesh the batch is split over the devices and the state is replicated (or split
over `fsdp`); losses are means over the global batch.

BatchNorm has two modes. `global` leaves the partitioning to XLA: statistics are those of the
global batch, at several all-reduces a layer. `local` runs the networks under `shard_map`: each
device normalises with its own rows, and one all-reduce a player averages gradients, running
statistics and metrics together. In that mode a loss must be a mean over samples, as
`jaxsr.interop.train.objective` asks; the other does not care.

Gradients are summed over the devices in float32. By default XLA sums gradients of bfloat16 networks
in bfloat16, so these run under `shard_map` in both modes, `global` with BatchNorm's statistics
exchanged in every layer. Parameters split over `fsdp` are the exception: there XLA partitions, and
sums in bfloat16, as it does with those split over `tensor`.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, cast

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from jaxsr.interop import mesh as meshes
from jaxsr.interop._core.index_bounds import worse
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import InputError, UnsupportedTorchError
from jaxsr.interop.module import JaxModule
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.train.device_buffers import differing
from jaxsr.interop.train.gradients import Arrays, PhaseGradients, select_network
from jaxsr.interop.train.objective import (
    INDEX,
    Objective,
    Phase,
    decides_failure,
    index_rule,
    uncut_names,
)
from jaxsr.interop.train.optimizers import (
    Elementwise,
    has_own_average,
    updates_done,
    validated_params,
)
from jaxsr.interop.train.options import StepConfig
from jaxsr.interop.train.packing import Packing, norm

if TYPE_CHECKING:
    import torch

Prepare = Callable[[Mapping[str, Any], jax.Array], Mapping[str, jax.Array]]
_wrap_key = cast(Callable[[jax.Array], jax.Array], jax.random.wrap_key_data)  # untyped in JAX


class TrainState(flax.struct.PyTreeNode):
    """The complete state of a run, saved as one checkpoint.

    Attributes:
      step: steps done.
      params: trainable parameters of every network, float32, torch names.
      buffers: everything else the networks read, torch names.
      optimizers: optax state by network.
      ema: moving average of the exported network's parameters; empty if there is none.
      key: root random key of the run; never advanced, only folded with the step.
      failed_step: 0, or the number of the first step whose loss or gradient was not finite, or
        that met an index out of range. From it on the state stays as it was before.
    """

    step: jax.Array
    params: Arrays
    buffers: Arrays
    optimizers: dict[str, optax.OptState]
    ema: Arrays
    key: jax.Array
    failed_step: jax.Array


def init_state(
    model: JaxModule,
    optimizers: Mapping[str, optax.GradientTransformation],
    *,
    exported: str,
    seed: int,
    ema: bool,
) -> TrainState:
    """A fresh state on the default device.

    Args:
      model: the objective, converted by `to_jax`.
      optimizers: one per network that learns.
      exported: network whose moving average is kept.
      seed: of the run's root key.
      ema: whether to keep the moving average.

    Raises:
      InputError: an optimiser has a state that checkpoints do not hold, or averages what `ema`
        would.
    """
    states = {
        name: _first_state(rule, select_network(model.params, name))
        for name, rule in optimizers.items()
    }
    if ema and has_own_average(states.get(exported, ())):
        raise InputError(
            "a schedule-free rule averages the weights itself; leave the moving average out: "
            "--ema 0"
        )
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=dict(model.params),
        buffers=dict(model.buffers),
        optimizers=states,
        # A copy: the step donates its state, and one buffer cannot be donated twice.
        ema=jax.tree.map(jnp.copy, select_network(model.params, exported)) if ema else {},
        key=jax.random.key_data(jax.random.key(seed)),
        failed_step=jnp.zeros((), jnp.int32),
    )


def _first_state(rule: optax.GradientTransformation, params: Arrays) -> optax.OptState:
    state = rule.init(params)
    leaves = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
        raise InputError(
            "this optimiser keeps a random key in its state, which checkpoints do not hold (as "
            "optax.add_noise does); use another one"
        )
    jax.eval_shape(validated_params, state, params)
    return state


def convert(
    objective: Objective,
    config: StepConfig,
    *,
    remat: Sequence[str] = (),
    model_devices: int = 1,
    device: Any = None,
) -> JaxModule:
    """The objective as a pure function, its players' networks computing in `compute_dtype`.

    Losses stay in float32: a network's inputs are cast on entry, its outputs on leaving, and the
    operands of its products wherever a buffer of float32 has come in.

    Args:
      objective: networks and losses.
      config: of the step.
      remat: submodules to recompute in the backward pass.
      model_devices: devices of the mesh that share one replica of the parameters.
      device: one of those that the step will run on. Default: JAX's first.

    Raises:
      UnsupportedTorchError: it cannot be converted, or trains complex numbers.
    """
    from jaxsr.interop.folding.policy import choose_folding
    from jaxsr.interop.module import to_jax

    for name, parameter in objective.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise UnsupportedTorchError(
                f"the parameter {name} is {parameter.dtype}, and JAX's gradients and optimisers "
                "treat complex numbers otherwise than torch's; keep its real and imaginary parts "
                "(torch.view_as_real) as the parameter, and use torch.view_as_complex in forward"
            )

    def converted(objective: Objective, **options: Any) -> JaxModule:
        model = to_jax(objective, remat=remat, lane_folding=folding, **options)
        _refuse_tied_networks(model, _player_networks(objective))
        return model

    folding = choose_folding(config.lane_folding, device)
    if config.dtype == "float32":
        return converted(objective)
    import torch

    dtype = getattr(torch, config.dtype)
    objective = copy_module(objective)
    for network in sorted(_player_networks(objective)):
        module = objective.get_submodule(network)
        _run_under_autocast(module, dtype)
        module.register_forward_pre_hook(
            lambda _, inputs, named: _cast_floats((inputs, named), dtype), with_kwargs=True
        )
        module.register_forward_hook(
            lambda _, inputs, outputs: _cast_floats(outputs, torch.float32)
        )
    if config.batch_norm == "local" or not config.per_device(model_devices=model_devices):
        return converted(objective)
    _exchange_statistics(objective)
    return converted(objective, sync_axis=meshes.DATA_AXES)


def _refuse_tied_networks(model: JaxModule, networks: set[str]) -> None:
    """Refuses trained parameters that a player's network shares with modules outside it.

    A player's optimiser moves parameters with the network's name, and a tied parameter has only one
    name.
    """
    for alias, name in model.aliases.items():
        for network in networks:
            if name not in model.params or not alias.startswith(f"{network}."):
                continue
            if not name.startswith(f"{network}."):
                raise UnsupportedTorchError(
                    f"{alias} and {name} are one parameter, which the optimiser of {network} would "
                    "not move; keep it in that network alone and pass its results, or use "
                    "--engine torch"
                )


def _cast_floats(tree: PyTree, dtype: "torch.dtype") -> PyTree:
    """The tree with its floating tensors in this dtype."""
    import torch
    from torch.utils import _pytree as pytree

    def in_dtype(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    return pytree.tree_map_only(torch.Tensor, in_dtype, tree)


def _run_under_autocast(module: "torch.nn.Module", dtype: "torch.dtype") -> None:
    """Gives the module a class whose forward casts operands of products, as torch's step does.

    Buffers stay in float32, and so does what is computed with one of them before the next product.
    """
    import torch

    kind = type(module)

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return kind.forward(self, *inputs, **named)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    module.__class__ = type(kind.__name__, (kind,), {"forward": forward} | names)


def _exchange_statistics(objective: Objective) -> None:
    """Makes each BatchNorm a SyncBatchNorm, as torch does for its own data parallelism."""
    from torch import nn

    for module in list(objective.modules()):
        for name, child in list(module.named_children()):
            if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                setattr(module, name, nn.SyncBatchNorm.convert_sync_batchnorm(child))


def _player_networks(objective: Objective) -> set[str]:
    return {player.network for phase in objective.phases for player in phase.players}


@dataclass(frozen=True, eq=False)
class TrainStep:
    """One step of a phase, `step(state, batch) -> (state, metrics)`; jit it, donating the state.

    Metrics are scalars by `network/name`: the loss, the metrics that the loss reports, `grad_norm`
    before clipping, `update_norm`, `param_norm` before the update, `lr` where a schedule is given,
    and for every operation that takes indices one that is out of range, or 0 (`index_rule`).

    Raises:
      ValueError: local BatchNorm on a mesh that splits parameters.
    """

    model: JaxModule
    """The objective, converted by `convert`."""
    phase: Phase
    """The phase to train."""
    optimizers: Mapping[str, optax.GradientTransformation]
    """One for each network that learns in any phase."""
    _: KW_ONLY
    prepare: Prepare
    """From the host's batch and the run's root key to the objective's batch."""
    mesh: Mesh
    """Where the step will run."""
    config: StepConfig = field(default_factory=StepConfig)
    """Accumulation, BatchNorm mode, moving average, compute dtype."""
    schedules: Mapping[str, optax.Schedule] = field(default_factory=dict[str, optax.Schedule])
    """Learning rate by network, as a function of its updates; for the metrics alone."""
    constants: Collection[str] = ()
    """Names of arrays in the host's batch that are not cut into slices or over devices."""

    def __post_init__(self) -> None:
        self.config.check_fits(self.mesh.shape)

    def __call__(self, state: TrainState, batch: Mapping[str, Any]) -> tuple[TrainState, Arrays]:
        root = _wrap_key(state.key)
        prepared = dict(self.prepare(batch, root))
        key = jax.random.key_data(jax.random.fold_in(root, state.step))

        is_per_device = self.config.per_device(model_devices=meshes.model_devices(self.mesh))
        uncut = set[str]()
        if is_per_device or self.config.accumulate > 1:
            uncut = uncut_names(prepared, {name: batch[name] for name in self.constants})
        update: Callable[..., Any] = functools.partial(self._update_players, uncut=uncut)
        if is_per_device:
            rows = PartitionSpec(meshes.DATA_AXES)
            specs = {name: PartitionSpec() if name in uncut else rows for name in prepared}
            is_local = self.config.batch_norm == "local"
            update = _per_device(update, self.mesh, specs, local_statistics=is_local)
        params, buffers, opt_states, metrics = update(
            state.params, state.buffers, state.optimizers, prepared, key
        )

        new = state.replace(
            step=state.step + 1,
            params=params,
            buffers=buffers,
            optimizers=opt_states,
            ema=_update_ema(state.ema, params, state.step, self.config.ema),
        )
        return self._unless_failed(state, new, metrics), metrics

    def _update_players(
        self,
        params: Arrays,
        buffers: Arrays,
        opt_states: dict[str, optax.OptState],
        batch: Arrays,
        key_data: jax.Array,
        average: Callable[[PyTree], PyTree] = lambda tree: tree,
        worst: Callable[[Arrays], Arrays] = lambda indices: indices,
        apart: "Callable[[Arrays, torch.nn.Module], Arrays]" = lambda buffers, module: {},
        *,
        uncut: Collection[str] = (),
    ) -> tuple[Arrays, Arrays, dict[str, optax.OptState], Arrays]:
        """Every player in turn: gradients, update, metrics; the last three are over the devices."""
        key = _wrap_key(key_data)
        gradients = PhaseGradients(
            model=self.model,
            phase=self.phase,
            compute_dtype=jnp.dtype(self.config.dtype),
            mesh=self.mesh,
        )
        slices = self.config.accumulate
        params, opt_states = dict(params), dict(opt_states)
        metrics: Arrays = {}
        shared = gradients.share(params, buffers, batch, key) if slices == 1 else None
        for index, player in enumerate(self.phase.players):
            network = player.network
            gradients.reached.clear()
            with jax.named_scope(network):
                if shared is None:
                    result = gradients.accumulate(index, params, buffers, batch, key, slices, uncut)
                else:
                    before = shared.buffers if index == 0 else buffers
                    result = gradients.of_player(index, params, before, batch, key, shared)
                unchanged = self.model.frozen - self.model.written
                statistics = {n: v for n, v in result.buffers.items() if n not in unchanged}
                written = {n: v for n, v in statistics.items() if n in self.model.written}
                broken = worst(result.indices) | apart(written, self.model.functional.module)
                grads, statistics, scalars = average((result.grads, statistics, result.metrics))
                buffers = {**result.buffers, **statistics}

                network_params = select_network(params, network)
                opt_state = opt_states[network]
                optimizer = self.optimizers[network]
                unused = set(network_params) - gradients.reached
                packs = isinstance(optimizer, Elementwise) and not unused
                packing = Packing.of(network_params if packs else {}, self.mesh)
                old, grads = packing.pack(network_params), packing.pack(grads)
                updates, new_opt_state = optimizer.update(grads, packing.pack(opt_state), old)
                updates = _without(unused, updates, jax.tree.map(_zeros, updates))
                params.update(packing.unpack(optax.apply_updates(old, updates)))
                opt_states[network] = _without(unused, packing.unpack(new_opt_state), opt_state)

                scalars["grad_norm"] = norm(grads)
                scalars["update_norm"] = norm(updates)
                scalars["param_norm"] = norm(old)
                for rule, outside in broken.items():
                    scalars[f"{INDEX}{rule}"] = outside
                if network in self.schedules:
                    scalars["lr"] = self.schedules[network](updates_done(opt_state))
            metrics |= {f"{network}/{name}": value for name, value in scalars.items()}
        return params, buffers, opt_states, metrics

    def _unless_failed(self, old: TrainState, new: TrainState, metrics: Arrays) -> TrainState:
        """The new state, or the old one from the first step on whose metrics are not sound."""
        sound = [_is_sound(name, value) for name, value in metrics.items() if decides_failure(name)]
        sound = jnp.all(jnp.stack(sound))
        keep = sound & (old.failed_step == 0)
        failed_step = jnp.where(keep | (old.failed_step > 0), old.failed_step, old.step + 1)
        packing = Packing.of(new, self.mesh)

        def chosen(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(keep, new, old)

        state = packing.unpack(jax.tree.map(chosen, packing.pack(new), packing.pack(old)))
        return state.replace(failed_step=failed_step)


def _zeros(x: jax.Array) -> jax.Array:
    return jnp.zeros_like(x)


def _without(unused: set[str], new: PyTree, old: PyTree) -> PyTree:
    """A tree of updates or of an optimiser's state, as it was for parameters that are not used.

    Torch's gradient of them is None, and its optimisers leave them alone: no decay, no momentum.
    """
    if not unused:
        return new

    def chosen(path: tuple[Any, ...], new: jax.Array, old: jax.Array) -> jax.Array:
        return old if any(getattr(key, "key", None) in unused for key in path) else new

    return jax.tree_util.tree_map_with_path(chosen, new, old)


def _is_sound(metric: str, value: jax.Array) -> jax.Array:
    return jnp.isfinite(value) if index_rule(metric) is None else value == 0


def _per_device(
    update: Callable[..., Any],
    mesh: Mesh,
    specs: Mapping[str, PartitionSpec],
    *,
    local_statistics: bool,
) -> Callable[..., Any]:
    """Runs `update` on each device's rows, with collectives that join the devices' results.

    Args:
      update: takes the state's parts, the batch, the key, `average`, `worst` and `apart`.
      mesh: where.
      specs: of the arrays of the batch.
      local_statistics: whether statistics may be those of one device's rows; otherwise BatchNorm
        must exchange them.
    """

    def average(tree: PyTree) -> PyTree:
        # A tree, not one vector of all: compilers join the sums of a tree into one all-reduce, and
        # a TPU pays dearly for reshaping kernels to rows (14 of 38 M cycles of a GAN's step).
        structure = cast(Any, jax.tree.structure(tree))
        leaves = jax.tree.leaves(tree)
        # Counters are equal on every device already.
        is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
        averaged = iter(
            jax.lax.pmean([x for x, f in zip(leaves, is_float, strict=True) if f], meshes.DATA_AXES)
        )
        merged = [next(averaged) if f else x for x, f in zip(leaves, is_float, strict=True)]
        return jax.tree.unflatten(structure, merged)

    def worst(indices: Arrays) -> Arrays:
        values = list(indices.values())
        if not values:
            return indices
        # In one sum's place: the largest of both signs, all operations together.
        signed = jnp.stack([*values, *(-v for v in values)])
        highest, lowest = jnp.split(jax.lax.pmax(signed, meshes.DATA_AXES), 2)
        return dict(zip(indices, worse(highest, -lowest), strict=True))

    def local(
        params: Arrays,
        buffers: Arrays,
        opt_states: dict[str, optax.OptState],
        batch: Arrays,
        key_data: jax.Array,
    ) -> PyTree:
        # Each device draws its own random numbers, as it sees its own rows.
        key = _wrap_key(key_data)
        key = jax.random.fold_in(key, jax.lax.axis_index(meshes.DATA_AXES))
        key_data = jax.random.key_data(key)
        with contextlib.nullcontext() if local_statistics else whole_batch_statistics():
            return update(params, buffers, opt_states, batch, key_data, average, worst, differing)

    from jaxsr.interop.lowerings.batch_norm import whole_batch_statistics

    replicated = PartitionSpec()
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(replicated, replicated, replicated, dict(specs), replicated),
        out_specs=replicated,
        # The averages make the outputs equal on every device; the checker cannot see that
        # through the torch module's operations.
        check_vma=False,
    )


def _update_ema(ema: Arrays, params: Arrays, step: jax.Array, decay: float) -> Arrays:
    """Moves the average; early on it follows faster, (1 + t) / (10 + t), as TensorFlow's does."""
    if not ema:
        return ema
    t = step.astype(jnp.float32)
    decay_now = jnp.minimum(decay, (1 + t) / (10 + t))
    return {name: decay_now * old + (1 - decay_now) * params[name] for name, old in ema.items()}
