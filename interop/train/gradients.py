# pyright: reportUnknownMemberType=false
"""Loss and gradient of one player of a phase, on one batch or summed over its slices.

A phase's `share` runs once; each player differentiates its own loss, and through the shared results
if `Player.through_shared` says so. The protocol is `jaxsr.interop.train.objective`.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.sharding import Mesh

from jaxsr.interop._core.index_bounds import collecting_indices, worse
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.mesh import split_activations
from jaxsr.interop.module import JaxModule
from jaxsr.interop.train.objective import Phase, check_slices, checked_loss, refuse_write

Arrays = dict[str, jax.Array]
_Vjp = Callable[..., tuple[PyTree, Callable[[PyTree], tuple[Arrays]], tuple[Arrays, Arrays]]]


def select_network(tree: Mapping[str, Any], network: str) -> dict[str, Any]:
    """The entries of one network, by the prefix of their torch names."""
    return {name: leaf for name, leaf in tree.items() if name.startswith(network + ".")}


def worse_of(one: Arrays, other: Arrays) -> Arrays:
    """For every operation, the worse of its indices in two runs, or in the one that has it."""
    both = {rule: worse(one[rule], other[rule]) for rule in one if rule in other}
    return {**one, **other, **both}


_structure = cast(Callable[[PyTree], Any], jax.tree.structure)  # untyped in JAX


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _watched(reached: set[str], arrays: Arrays) -> Arrays:
    """The arrays; adds to `reached` the names of those at which a gradient arrives."""
    del reached
    return arrays


def _watched_forward(reached: set[str], arrays: Any) -> tuple[Arrays, None]:
    return {name: array.value for name, array in arrays.items()}, None


def _watched_backward(reached: set[str], _: None, cotangents: PyTree) -> tuple[PyTree]:
    reached |= {n for n, ct in cotangents.items() if not isinstance(ct, SymbolicZero)}
    return (cotangents,)


_watched.defvjp(_watched_forward, _watched_backward, symbolic_zeros=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cut_off(reached: set[str], *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays; gradients go on from those whose number is in `reached` by then."""
    del reached
    return arrays


def _cut_off_forward(reached: set[str], *arrays: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
    return arrays, None


def _cut_off_backward(
    reached: set[str], _: None, cotangents: tuple[jax.Array, ...]
) -> tuple[jax.Array | None, ...]:
    return tuple(ct if str(n) in reached else None for n, ct in enumerate(cotangents))


_cut_off.defvjp(_cut_off_forward, _cut_off_backward)


class Shared(NamedTuple):
    """Values that the players of a phase share on one batch."""

    tensors: PyTree
    """Result of the phase's `share`."""
    pullback: Callable[[PyTree], Arrays]
    """From the tensors' cotangents to gradients of the networks that learn through them."""
    buffers: Arrays
    """All buffers after `share`."""
    indices: Arrays
    """The worst index of each operation, as `collecting_indices` has it."""


class PlayerGradients(NamedTuple):
    """Result of one player's loss."""

    grads: Arrays
    """By parameter of the player's network."""
    buffers: Arrays
    """All buffers after the loss."""
    metrics: Arrays
    """The loss and the player's own metrics."""
    indices: Arrays
    """The worst index of each operation of `share` and the loss."""


@dataclass(frozen=True, kw_only=True)
class PhaseGradients:
    """Differentiates the losses of a phase."""

    model: JaxModule
    """The objective, converted by `jaxsr.interop.train.step.convert`."""
    phase: Phase
    compute_dtype: np.dtype
    """Floating dtype of the players' networks; gradients come back in the parameters' dtype."""
    mesh: Mesh
    """Where the step will run."""
    reached: set[str] = field(default_factory=set[str])
    """Parameters on which a player's loss depends; torch's gradient of others is None.

    Shared tensors are among them by their numbers. Clear it before each player.
    """

    def share(self, params: Arrays, buffers: Arrays, batch: Arrays, key: jax.Array) -> Shared:
        """Runs the phase's `share` once."""
        networks = [p.network for p in self.phase.players if p.through_shared]
        learning = {k: v for n in networks for k, v in select_network(params, n).items()}

        def run(learning: Arrays) -> tuple[PyTree, tuple[Arrays, Arrays]]:
            learning = _watched(self.reached, learning)
            with split_activations(self.mesh, batch), collecting_indices() as indices:
                tensors, new_buffers = self.model.apply(
                    self._cast(params | learning),
                    self._cast_frozen(buffers),
                    batch,
                    rng=jax.random.fold_in(key, len(self.phase.players)),
                    train=True,
                    method=self.phase.share,
                )
            self._refuse_write(self.phase.share)
            leaves: Any = _cut_off(self.reached, *jax.tree.leaves(tensors))
            tensors = jax.tree.unflatten(_structure(tensors), leaves)
            return tensors, (self._with_frozen(new_buffers, buffers), indices)

        vjp = cast(_Vjp, jax.vjp)
        tensors, pullback, (new_buffers, indices) = vjp(run, learning, has_aux=True)

        def gradients(cotangent: PyTree) -> Arrays:
            return pullback(cotangent)[0]

        return Shared(tensors, gradients, new_buffers, indices)

    def of_player(
        self,
        index: int,
        params: Arrays,
        buffers: Arrays,
        batch: Arrays,
        key: jax.Array,
        shared: Shared,
    ) -> PlayerGradients:
        """Gradients of player number `index` on one batch."""
        player = self.phase.players[index]

        def loss(network_params: Arrays, tensors: PyTree) -> tuple[jax.Array, PyTree]:
            network_params = _watched(self.reached, network_params)
            numbered = {str(n): leaf for n, leaf in enumerate(jax.tree.leaves(tensors))}
            leaves: Any = _watched(self.reached, numbered)
            tensors = jax.tree.unflatten(_structure(tensors), [leaves[n] for n in numbered])
            with split_activations(self.mesh, batch), collecting_indices() as indices:
                result, new_buffers = self.model.apply(
                    self._cast(params | network_params),
                    self._cast_frozen(buffers),
                    tensors,
                    batch,
                    rng=jax.random.fold_in(key, index),
                    train=True,
                    method=player.loss,
                )
            if index < len(self.phase.players) - 1:
                self._refuse_write(player.loss)
            value, metrics = checked_loss(result, player.loss)
            return value, (self._with_frozen(new_buffers, buffers), metrics, indices)

        (value, (new_buffers, metrics, indices)), (grads, tensor_grads) = jax.value_and_grad(
            loss, argnums=(0, 1), has_aux=True
        )(select_network(params, player.network), shared.tensors)
        if player.through_shared:
            through = select_network(shared.pullback(tensor_grads), player.network)
            grads = jax.tree.map(jnp.add, grads, through)
        indices = worse_of(shared.indices, indices)
        return PlayerGradients(grads, new_buffers, {"loss": value, **metrics}, indices)

    def _refuse_write(self, method: str) -> None:
        functional = self.model.functional
        refuse_write(functional.module, method, functional.input_written)

    def accumulate(
        self,
        index: int,
        params: Arrays,
        buffers: Arrays,
        batch: Arrays,
        key: jax.Array,
        slices: int,
        uncut: Collection[str] = (),
    ) -> PlayerGradients:
        """Gradients of player number `index`, averaged over slices with one in memory at a time.

        Slice j takes rows j, j + slices, …: each then holds rows of every device, and nothing moves
        between devices. `share` runs for every slice and player; its buffers count once. Arrays of
        the names `uncut` are in each slice.

        Raises:
          ValueError: the rows cannot be cut into so many slices.
        """

        def cut(rows: jax.Array) -> jax.Array:
            check_slices(rows.shape[0], slices)
            return rows.reshape(rows.shape[0] // slices, slices, *rows.shape[1:]).swapaxes(0, 1)

        constants = {name: batch[name] for name in uncut}

        def slice_gradients(buffers: Arrays, rows: Arrays, key: jax.Array) -> PlayerGradients:
            rows = {**rows, **constants}
            shared = self.share(params, buffers, rows, key)
            return self.of_player(
                index, params, shared.buffers if index == 0 else buffers, rows, key, shared
            )

        def body(
            carry: tuple[Arrays, PyTree, Arrays], xs: tuple[jax.Array, Arrays]
        ) -> tuple[PyTree, None]:
            buffers, total, indices = carry
            slice_index, rows = xs
            step = slice_gradients(buffers, rows, jax.random.fold_in(key, slice_index))
            total = jax.tree.map(jnp.add, total, (step.grads, step.metrics))
            return (step.buffers, total, worse_of(indices, step.indices)), None

        def first_of(pieces: jax.Array) -> jax.Array:
            return pieces[0]

        def zeros_of(x: jax.ShapeDtypeStruct) -> jax.Array:
            return jnp.zeros(x.shape, x.dtype)

        def averaged(total: jax.Array) -> jax.Array:
            return total / slices

        pieces = jax.tree.map(cut, {n: rows for n, rows in batch.items() if n not in uncut})
        shapes = jax.eval_shape(slice_gradients, buffers, jax.tree.map(first_of, pieces), key)
        zeros, no_indices = jax.tree.map(zeros_of, ((shapes.grads, shapes.metrics), shapes.indices))
        (buffers, total, indices), _ = jax.lax.scan(
            body, (buffers, zeros, no_indices), (jnp.arange(slices), pieces)
        )
        grads, metrics = jax.tree.map(averaged, total)
        return PlayerGradients(grads, buffers, metrics, indices)

    def _cast(self, arrays: Arrays) -> Arrays:
        """The arrays, those of the players' networks in the dtype of computation."""
        if self.compute_dtype == jnp.float32:
            return arrays
        networks = {player.network for player in self.phase.players}
        learning = {k: v for n in networks for k, v in select_network(arrays, n).items()}
        return arrays | {k: v.astype(self.compute_dtype) for k, v in learning.items()}

    def _cast_frozen(self, buffers: Arrays) -> Arrays:
        """The buffers, with the players' frozen parameters in the dtype of computation."""
        return buffers | self._cast(self._frozen(buffers))

    def _with_frozen(self, new: Arrays, old: Arrays) -> Arrays:
        """The buffers after a call, without the casts of frozen parameters, which are not updates.

        Raises:
          UnsupportedTorchError: the call wrote one, such as a teacher's moving average, in a dtype
            that it is kept from.
        """
        if self.compute_dtype == jnp.float32:
            return new
        frozen = self._frozen(old)
        if written := sorted(self.model.written & {*frozen}):
            raise UnsupportedTorchError(
                f"the loss writes the frozen parameter {written[0]}, which {self.compute_dtype} "
                "would round at every step; train in float32, or make it a buffer"
            )
        return new | frozen

    def _frozen(self, buffers: Arrays) -> Arrays:
        return {name: buffers[name] for name in buffers if name in self.model.frozen}
