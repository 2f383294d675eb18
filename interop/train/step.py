"""One training step of an objective's phase, as a pure function of the training state.

Everything between the batch of uint8 and the new state is inside: preparation, the torch modules
as pure functions, every player's loss and gradient, the optimiser updates and the moving average.
Under `jit` on a mesh the batch is split over the devices and the state is replicated (or split
over `fsdp`); losses are means over the global batch.

BatchNorm has two modes. `global` leaves the partitioning to XLA: statistics are those of the
global batch, at several all-reduces a layer. `local` runs the networks under `shard_map`: each
device normalises with its own rows, and one all-reduce a player averages gradients, running
statistics and metrics together. In that mode a loss must be a mean over samples, as
`jaxsr.models.objective` asks; the other does not care.

Gradients are summed over the devices in float32. Left to itself XLA sums those of bfloat16 networks
in bfloat16, so these run under `shard_map` in both modes, `global` with BatchNorm's statistics
exchanged in every layer. Parameters split over `fsdp` are the exception: there XLA partitions, and
sums in bfloat16.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from jaxsr.interop import mesh as meshes

Arrays = dict[str, jax.Array]
Prepare = Callable[[Mapping[str, Any], jax.Array], Mapping[str, jax.Array]]


class TrainState(flax.struct.PyTreeNode):
    """All that a run consists of: saved whole, restored whole.

    Attributes:
      step: steps done.
      params: trainable parameters of every network, float32, torch names.
      buffers: everything else the networks read, torch names.
      optimizers: optax state by network.
      ema: moving average of the exported network's parameters; empty if there is none.
      key: root random key of the run; never advanced, only folded with the step.
      failed_step: 0, or the number of the first step whose loss or gradient was not finite.
        From that step on the state stays as it was before it.
    """

    step: jax.Array
    params: Arrays
    buffers: Arrays
    optimizers: dict[str, Any]
    ema: Arrays
    key: jax.Array
    failed_step: jax.Array


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """What the step does beyond the objective itself."""

    batch_norm: Literal["global", "local"] = "global"
    """Statistics over the global batch, or over each device's rows."""
    accumulate: int = 1
    """Slices a batch is cut into; gradients are averaged over them before the update."""
    ema_decay: float = 0.0
    """Decay of the moving average of the exported network's parameters; 0 keeps none."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """What the players' networks compute in; parameters, losses and updates stay float32."""
    lane_folding: Literal["auto", "on", "off"] = "auto"
    """Narrow convolutions with columns folded into a TPU's lanes; auto: on TPUs, and channels last
    on CPUs."""

    def __post_init__(self) -> None:
        if self.batch_norm not in ("global", "local"):
            raise ValueError(f"batch_norm must be global or local, got {self.batch_norm!r}")
        if self.accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, got {self.accumulate}")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1), got {self.ema_decay}")
        if self.lane_folding not in ("auto", "on", "off"):
            raise ValueError(f"lane_folding must be auto, on or off, got {self.lane_folding!r}")
        if self.compute_dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"compute_dtype must be float32 or bfloat16, got {self.compute_dtype!r}"
            )

    def per_device(self, *, fsdp: int) -> bool:
        """Whether the step is written out for each device, rather than partitioned by XLA."""
        return self.batch_norm == "local" or (self.compute_dtype != "float32" and fsdp == 1)

    def check_fits(self, *, data: int, fsdp: int) -> None:
        """Refuses a mesh of these sizes where the step cannot run on it.

        Raises:
          ValueError: local BatchNorm with parameters split over `fsdp`.
        """
        if self.batch_norm == "local" and fsdp > 1:
            raise ValueError(
                f"batch_norm=local needs whole parameters on every device, but the mesh has "
                f"fsdp={fsdp}; use batch_norm=global, or --mesh {data * fsdp}"
            )


def of_network(tree: Mapping[str, Any], network: str) -> dict[str, Any]:
    """The entries of one network, by the prefix of their torch names."""
    return {name: leaf for name, leaf in tree.items() if name.startswith(network + ".")}


def init_state(
    model: Any,
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
    """
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=dict(model.params),
        buffers=dict(model.buffers),
        optimizers={n: tx.init(of_network(model.params, n)) for n, tx in optimizers.items()},
        # A copy: the step donates its state, and one buffer cannot be donated twice.
        ema=jax.tree.map(jnp.copy, of_network(model.params, exported)) if ema else {},
        key=jax.random.key_data(jax.random.key(seed)),
        failed_step=jnp.zeros((), jnp.int32),
    )


def convert(
    objective: Any,
    config: StepConfig,
    *,
    remat: Sequence[str] = (),
    fsdp: int = 1,
    device: Any = None,
) -> Any:
    """The objective as a pure function, its players' networks computing in `compute_dtype`.

    Losses stay in float32: a network's inputs are cast on entry and its outputs on leaving.

    Args:
      objective: networks and losses.
      config: of the step.
      remat: submodules to recompute in the backward pass.
      fsdp: devices that parameters are split over on the mesh.
      device: one of those that the step will run on. Default: JAX's first.
    """
    from jaxsr.interop.folding.policy import choose_folding
    from jaxsr.interop.module import to_jax

    folding = choose_folding(config.lane_folding, device)
    if config.compute_dtype == "float32":
        return to_jax(objective, remat=remat, lane_folding=folding)
    import torch

    dtype = getattr(torch, config.compute_dtype)
    objective = copy.deepcopy(objective)
    for network in sorted(_player_networks(objective)):
        module = objective.get_submodule(network)
        module.register_forward_pre_hook(
            lambda _, inputs: tuple(
                x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                for x in inputs
            )
        )
        module.register_forward_hook(
            lambda _, inputs, outputs: jax.tree.map(lambda x: x.float(), outputs)
        )
    if config.batch_norm == "local" or not config.per_device(fsdp=fsdp):
        return to_jax(objective, remat=remat, lane_folding=folding)
    _exchange_statistics(objective)
    return to_jax(objective, remat=remat, sync_axis=meshes.DATA_AXES, lane_folding=folding)


def _exchange_statistics(objective: Any) -> None:
    """Makes each BatchNorm a SyncBatchNorm, as torch does for its own data parallelism."""
    from torch import nn

    for module in list(objective.modules()):
        for name, child in list(module.named_children()):
            if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                setattr(module, name, nn.SyncBatchNorm.convert_sync_batchnorm(child))


def _player_networks(objective: Any) -> set[str]:
    return {player.network for phase in objective.phases for player in phase.players}


def make_train_step(
    model: Any,
    phase: Any,
    optimizers: Mapping[str, optax.GradientTransformation],
    *,
    prepare: Prepare,
    mesh: Mesh,
    config: StepConfig | None = None,
) -> Callable[[TrainState, Any], tuple[TrainState, Arrays]]:
    """Builds `step(state, batch) -> (state, metrics)`; the caller jits it, donating the state.

    Args:
      model: the objective, converted by `convert`.
      phase: the phase to train, see `jaxsr.models.objective`.
      optimizers: one per network that moves in any phase.
      prepare: from the host's batch and the run's root key to the objective's batch.
      mesh: where the step will run.
      config: accumulation, BatchNorm mode, moving average, compute dtype.

    Raises:
      ValueError: local BatchNorm on a mesh that splits parameters.
    """
    config = config or StepConfig()
    config.check_fits(data=mesh.shape["data"], fsdp=mesh.shape["fsdp"])
    update = functools.partial(_update_players, model, phase, optimizers, config)
    if config.per_device(fsdp=mesh.shape["fsdp"]):
        update = _per_device(update, mesh, alone=config.batch_norm == "local")
    else:
        update = functools.partial(update, lambda tree: tree)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Arrays]:
        root = jax.random.wrap_key_data(state.key)
        prepared = dict(prepare(batch, root))
        key = jax.random.key_data(jax.random.fold_in(root, state.step))
        params, buffers, opt_states, metrics = update(
            state.params, state.buffers, state.optimizers, prepared, key
        )
        finite = jnp.all(jnp.stack([jnp.isfinite(value) for value in metrics.values()]))
        new = TrainState(
            step=state.step + 1,
            params=params,
            buffers=buffers,
            optimizers=opt_states,
            ema=_move_average(state.ema, params, state.step, config.ema_decay),
            key=state.key,
            failed_step=state.failed_step,
        )
        keep = finite & (state.failed_step == 0)
        failed = jnp.where(keep | (state.failed_step > 0), state.failed_step, state.step + 1)
        new = jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, state)
        return new.replace(failed_step=failed), metrics

    return step


def _update_players(
    model: Any,
    phase: Any,
    optimizers: Mapping[str, optax.GradientTransformation],
    config: StepConfig,
    reduce: Callable[[Any], Any],
    params: Arrays,
    buffers: Arrays,
    opt_states: dict[str, Any],
    batch: Arrays,
    key_data: jax.Array,
) -> tuple[Arrays, Arrays, dict[str, Any], Arrays]:
    """Moves every player of the phase in turn; `reduce` averages a tree over the devices."""
    key = jax.random.wrap_key_data(key_data)
    gradients = _Gradients(model, phase, jnp.dtype(config.compute_dtype))
    params, opt_states = dict(params), dict(opt_states)
    metrics: Arrays = {}
    shared = gradients.share(params, buffers, batch, key) if config.accumulate == 1 else None
    for index, player in enumerate(phase.players):
        if shared is not None:
            buffers = shared.buffers if index == 0 else buffers
            grads, buffers, found = gradients.of_player(index, params, buffers, batch, key, shared)
        else:
            grads, buffers, found = _accumulate(
                gradients, index, params, buffers, batch, key, config.accumulate
            )
        statistics = {n: leaf for n, leaf in buffers.items() if n not in model.frozen}
        grads, statistics, found = reduce((grads, statistics, found))
        buffers = {**buffers, **statistics}
        network = player.network
        own = of_network(params, network)
        updates, opt_states[network] = optimizers[network].update(grads, opt_states[network], own)
        moved: Any = optax.apply_updates(own, updates)
        params.update(moved)
        found["grad_norm"] = optax.tree.norm(grads)
        metrics |= {f"{network}/{name}": value for name, value in found.items()}
    return params, buffers, opt_states, metrics


class _Shared(NamedTuple):
    """What a phase's players share: the tensors, their pullback, and the buffers afterwards."""

    tensors: Any
    pullback: Callable[[Any], Any]
    buffers: Arrays


@dataclass(frozen=True)
class _Gradients:
    """Loss and gradient of one player on one batch."""

    model: Any
    phase: Any
    dtype: jnp.dtype

    def share(self, params: Arrays, buffers: Arrays, batch: Arrays, key: jax.Array) -> _Shared:
        learners = [p.network for p in self.phase.players if p.through_shared]
        moving = {k: v for n in learners for k, v in of_network(params, n).items()}

        def run(moving: Arrays):
            return self.model.apply(
                self._cast(params | moving),
                buffers,
                batch,
                rng=jax.random.fold_in(key, len(self.phase.players)),
                train=True,
                method=self.phase.share,
            )

        tensors, pullback, new_buffers = jax.vjp(run, moving, has_aux=True)
        return _Shared(tensors, lambda cotangent: pullback(cotangent)[0], new_buffers)

    def of_player(
        self,
        index: int,
        params: Arrays,
        buffers: Arrays,
        batch: Arrays,
        key: jax.Array,
        shared: _Shared,
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Gradient by name, buffers after the pass, and the metrics with the loss among them."""
        player = self.phase.players[index]

        def loss(own: Arrays, tensors: Any):
            (value, metrics), after = self.model.apply(
                self._cast(params | own),
                buffers,
                tensors,
                batch,
                rng=jax.random.fold_in(key, index),
                train=True,
                method=player.loss,
            )
            return value, (after, metrics)

        own = of_network(params, player.network)
        (value, (after, metrics)), (grads, into_shared) = jax.value_and_grad(
            loss, argnums=(0, 1), has_aux=True
        )(own, shared.tensors)
        if player.through_shared:
            through = of_network(shared.pullback(into_shared), player.network)
            grads = jax.tree.map(jnp.add, grads, through)
        return grads, after, {"loss": value, **metrics}

    def _cast(self, params: Arrays) -> Arrays:
        if self.dtype == jnp.float32:
            return params
        networks = {p.network for p in self.phase.players}
        mine = {k: v for n in networks for k, v in of_network(params, n).items()}
        return params | {k: v.astype(self.dtype) for k, v in mine.items()}


def _accumulate(
    gradients: _Gradients,
    index: int,
    params: Arrays,
    buffers: Arrays,
    batch: Arrays,
    key: jax.Array,
    slices: int,
) -> tuple[Arrays, Arrays, Arrays]:
    """Averages one player's gradient over slices of the batch, one slice in memory at a time.

    Slice j takes rows j, j + slices, …, so that each holds rows of every device and nothing moves
    between them. What the players share is computed anew for each; its buffers count once.
    """

    def cut(rows: jax.Array) -> jax.Array:
        if rows.shape[0] % slices:
            raise ValueError(
                f"a batch of {rows.shape[0]} rows cannot be cut into accumulate={slices} slices; "
                "use a divisor of the rows"
            )
        return rows.reshape(-1, slices, *rows.shape[1:]).swapaxes(0, 1)

    def body(carry, xs):
        buffers, total = carry
        slice_index, rows = xs
        slice_key = jax.random.fold_in(key, slice_index)
        shared = gradients.share(params, buffers, rows, slice_key)
        before = shared.buffers if index == 0 else buffers
        grads, after, metrics = gradients.of_player(index, params, before, rows, slice_key, shared)
        return (after, jax.tree.map(jnp.add, total, (grads, metrics))), None

    pieces = jax.tree.map(cut, batch)
    first = jax.tree.map(lambda rows: rows[0], pieces)
    grads_and_metrics = jax.eval_shape(
        lambda b: gradients.of_player(
            index, params, b, first, key, gradients.share(params, b, first, key)
        )[::2],
        buffers,
    )
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), grads_and_metrics)
    (buffers, total), _ = jax.lax.scan(body, (buffers, zeros), (jnp.arange(slices), pieces))
    grads, metrics = jax.tree.map(lambda leaf: leaf / slices, total)
    return grads, buffers, metrics


def _per_device(update: Callable[..., Any], mesh: Mesh, *, alone: bool) -> Callable[..., Any]:
    """Runs `update` on each device's rows, averaging in each call of `reduce`.

    Args:
      update: takes `reduce` first, then the state's parts, the batch and the key.
      mesh: where.
      alone: whether statistics may be those of a device's rows; else BatchNorm must exchange them.
    """

    def reduce(tree: Any) -> Any:
        # A tree, not one vector of all: compilers join the sums of a tree into one all-reduce, and
        # a TPU pays dearly for reshaping kernels to rows (14 of 38 M cycles of a GAN's step).
        leaves, structure = jax.tree.flatten(tree)
        # Counters are equal on every device already.
        is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
        averaged = iter(
            jax.lax.pmean([x for x, f in zip(leaves, is_float, strict=True) if f], meshes.DATA_AXES)
        )
        merged = [next(averaged) if f else x for x, f in zip(leaves, is_float, strict=True)]
        return jax.tree.unflatten(structure, merged)

    def local(params, buffers, opt_states, batch, key_data):
        # Each device draws its own random numbers, as it sees its own rows.
        key = jax.random.wrap_key_data(key_data)
        key = jax.random.fold_in(key, jax.lax.axis_index(meshes.DATA_AXES))
        key_data = jax.random.key_data(key)
        with contextlib.nullcontext() if alone else whole_batch_statistics():
            return update(reduce, params, buffers, opt_states, batch, key_data)

    from jaxsr.interop.lowerings.batch_norm import whole_batch_statistics

    whole, rows = PartitionSpec(), PartitionSpec(meshes.DATA_AXES)
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(whole, whole, whole, rows, whole),
        out_specs=whole,
        # The averages make the outputs equal on every device; the checker cannot see that
        # through the torch module's operations.
        check_vma=False,
    )


def _move_average(ema: Arrays, params: Arrays, step: jax.Array, decay: float) -> Arrays:
    """Moves the average; early on it follows faster, (1 + t) / (10 + t), as TensorFlow's does."""
    if not ema:
        return ema
    t = step.astype(jnp.float32)
    decay_now = jnp.minimum(decay, (1 + t) / (10 + t))
    return {name: decay_now * old + (1 - decay_now) * params[name] for name, old in ema.items()}
