"""Runs batches of tiles as a JAX program, one for each tile shape, split over the mesh."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.interop import mesh as meshes
from jaxsr.interop.folding.policy import Choice, LaneFolding, choose_folding
from jaxsr.interop.module import to_jax
from jaxsr.restoration.torch_engine import Collect


class JaxEngine:
    """Tiles in, tiles out, on every device of a mesh.

    Args:
      network: the torch module.
      value_range: intensities that the network's 0…1 stands for.
      mesh: devices that a batch is split over.
      ensemble: average over the eight flips and turns, inside the program.
      dtype: of the computation, `float32` or `bfloat16`.
      lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.

    Raises:
      UnsupportedTorchError: the network does something that JAX would compute differently.
    """

    def __init__(
        self,
        network: Any,
        *,
        mesh: jax.sharding.Mesh,
        value_range: tuple[float, float] = (0.0, 1.0),
        ensemble: bool = False,
        dtype: str = "float32",
        lane_folding: Choice = "auto",
    ) -> None:
        model, run = tile_function(
            network,
            value_range=value_range,
            ensemble=ensemble,
            dtype=dtype,
            folding=choose_folding(lane_folding, mesh.devices.flat[0]),
        )
        self._sharding = meshes.batch_sharding(mesh)
        self._state = jax.device_put((model.params, model.buffers), meshes.replicated(mesh))
        self._run = jax.jit(run, out_shardings=self._sharding)
        self.programs: set[tuple[int, ...]] = set()

    def submit(self, tiles: np.ndarray) -> Collect:
        """Starts a batch (n, c, h, w) in [0, 1]; calling the result waits for the answer.

        n must divide by the devices of the mesh.
        """
        self.programs.add(tiles.shape)
        result = self._run(self._state, jax.device_put(tiles, self._sharding))
        return lambda: np.asarray(result)


def tile_function(
    network: Any,
    *,
    value_range: tuple[float, float],
    ensemble: bool,
    dtype: str,
    folding: LaneFolding | None,
) -> tuple[Any, Callable[[Any, jax.Array], jax.Array]]:
    """The converted network, and `(state, tiles) -> tiles` to be jitted; see `JaxEngine`."""
    network.eval()
    compute = None if dtype == "float32" else jnp.dtype(dtype)
    model = to_jax(network, compute_dtype=compute, lane_folding=folding)
    low, high = value_range

    def run(state: Any, tiles: jax.Array) -> jax.Array:
        def once(x: jax.Array) -> jax.Array:
            y, _ = model.apply(*state, x * (high - low) + low)
            return (y.astype(jnp.float32) - low) / (high - low)

        if not ensemble:
            return once(tiles)
        total = once(tiles)
        for k in range(1, 8):
            total += _turn(once(_turn(tiles, k)), k, back=True)
        return total / 8

    return model, run


def _turn(images: jax.Array, k: int, *, back: bool = False) -> jax.Array:
    """The k-th of the eight symmetries of the square, or its inverse."""
    if back:
        images = jnp.rot90(images, -(k % 4), (-2, -1))
        return jnp.flip(images, -1) if k >= 4 else images
    images = jnp.flip(images, -1) if k >= 4 else images
    return jnp.rot90(images, k % 4, (-2, -1))
