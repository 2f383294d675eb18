"""Runs batches as JAX programs, one for each shape, split over a mesh."""

import contextlib
import copy
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.errors import counted
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.aot.compile import Ahead, abstract, compile_ahead
from jaxsr.interop.aot.topology import Topology
from jaxsr.interop.errors import (
    GradientInForwardError,
    RefusedValueError,
    StateOfCallError,
    UnsupportedTorchError,
    first_line,
)
from jaxsr.interop.folding.policy import Choice, choose_folding
from jaxsr.interop.hooks import collecting_indices
from jaxsr.interop.lowerings.fusion import fused
from jaxsr.interop.mesh import (
    DATA_AXES,
    batch_sharding,
    make_mesh,
    place,
    platform_name,
    replicated,
    split_activations,
)
from jaxsr.interop.module import Arrays, to_jax
from jaxsr.interop.out_of_memory import check_program_fits
from jaxsr.interop.torch_evaluation import in_mode
from jaxsr.models.outputs import answer_of
from jaxsr.runtime.options import ComputeOptions
from jaxsr.runtime.runner import Around, Collect, only_network

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

State = tuple[Arrays, Arrays]
"""Parameters and buffers under the network's names, on the devices."""


@contextlib.contextmanager
def naming_torch() -> Iterator[None]:
    """Adds to an error of JAX that the other engine runs the network."""
    try:
        yield
    except GradientInForwardError:
        raise  # the other engine evaluates in inference mode, which has no gradients
    except UnsupportedTorchError as error:
        raise UnsupportedTorchError(f"{error}; --engine torch runs the network as it is") from error


class JaxRunner:
    """A network on every device of a mesh; see `jaxsr.runtime.runner.Runner`.

    Args:
      network: the torch module.
      mesh: devices that split a batch; those of a topology allow only `lower`.
      dtype: dtype of the network's computation, `float32` or `bfloat16`.
      around: computation around the network.
      lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.
      inputs: further arguments of the network, after the batch.
      draws: the network may draw random numbers, which are then the same for every batch.
      steps_keep_state: of a network that is in training, whether a traced step left Python state.

    Raises:
      UnsupportedTorchError: the network does something that JAX would compute differently.
    """

    compiles = True

    def __init__(
        self,
        network: "nn.Module",
        *,
        mesh: jax.sharding.Mesh,
        dtype: str = "float32",
        around: Around = only_network,
        lane_folding: Choice = "auto",
        inputs: tuple = (),
        draws: bool = False,
        steps_keep_state: Callable[[], bool] | None = None,
    ) -> None:
        self._steps_keep_state = steps_keep_state
        device = mesh.devices.flat[0]
        self.network = network
        self.devices = math.prod(mesh.shape[axis] for axis in DATA_AXES)
        self.platform = platform_name(device.platform)
        self.programs: set[tuple[int, ...]] = set()
        self._mesh, self._rows = mesh, batch_sharding(mesh)
        self._model = to_jax(
            in_mode(network),
            compute_dtype=None if dtype == "float32" else jnp.dtype(dtype),
            lane_folding=choose_folding(lane_folding, device),
        )

        def run(state: State, batch: jax.Array, named: dict[str, Any]) -> jax.Array:
            key = jax.random.key(0) if draws else None

            def apply(x: jax.Array) -> jax.Array:
                outputs = self._call(state, (x, *inputs), named, key)
                return answer_of(outputs).astype(jnp.float32)

            return around(jnp, apply, batch)

        self._run = jax.jit(fused(run), out_shardings=self._rows)
        self._methods: dict[str, Callable[..., Any]] = {}
        self._values = lambda: jax.device_put(
            (self._model.params, self._model.buffers), replicated(mesh)
        )

    def _call(
        self,
        state: State,
        inputs: tuple,
        named: dict[str, Any],
        key: jax.Array | None,
        method: str = "forward",
    ) -> PyTree:
        """The result of a method in evaluation mode.

        Raises:
          StateOfCallError: it depends on what a call in training leaves, or the other way round.
        """
        call = functools.partial(self._model.call, *state, inputs, named, rng=key, method=method)
        outputs, _ = call()
        keeps_state = self._model.functional.keeps_state
        if self._steps_keep_state is not None and (keeps_state or self._steps_keep_state()):
            try:
                with collecting_indices():  # those of the call in training are nobody's
                    jax.eval_shape(functools.partial(call, train=True))
            except StateOfCallError:
                raise
            except Exception as error:  # such as BatchNorm of one value; steps have other batches
                log.debug("not compared with a call in training: %s", first_line(error))
        return outputs

    def with_state(self, values: Callable[[], State]) -> "JaxRunner":
        """Returns a runner of the same programs with other values, requested when first needed."""
        runner = copy.copy(self)
        runner.__dict__.pop("_state", None)
        runner._values = values
        return runner

    @functools.cached_property
    def _state(self) -> State:
        return self._values()

    def submit(self, batch: np.ndarray, **named: np.ndarray) -> Collect:
        """See `Runner.submit`."""
        placed = jax.device_put((batch, named), self._rows)
        with naming_torch():
            if batch.shape not in self.programs:
                program = self._run.lower(self._state, *placed).compile()
                what = f"the values of the network on {counted(batch.shape[0], 'input')} of shape "
                what += "x".join(map(str, batch.shape[1:]))
                devices = self._mesh.local_devices
                check_program_fits(
                    program, devices, what, advice="use smaller batches, tiles or images"
                )
            result = self._run(self._state, *placed)
        self.programs.add(batch.shape)
        return lambda: np.asarray(result)

    def run(self, method: str, batch: Mapping[str, np.ndarray], *, seed: int) -> PyTree:
        """See `Runner.run`.

        Raises:
          RefusedValueError: torch refuses a value, such as an index out of range.
        """
        # If the devices cannot split the last batch, each of them computes it.
        is_shared = len(next(iter(batch.values()))) % self.devices == 0
        sharding = self._rows if is_shared else replicated(self._mesh)
        placed = place(dict(batch), dict.fromkeys(batch, sharding))
        if method not in self._methods:
            self._methods[method] = self._method(method)
        result, indices = jax.device_get(self._methods[method](self._state, placed, seed))
        for rule, index in indices.items():
            if index:
                raise RefusedValueError.of(rule, int(index))
        return result

    def _method(self, method: str) -> Callable[..., Any]:
        """Returns a method's program; replicates its result and the worst index of each rule."""

        def run(state: State, batch: Arrays, seed: jax.Array) -> PyTree:
            key = jax.random.key(seed)
            with split_activations(self._mesh, batch), collecting_indices() as indices:
                outputs = self._call(state, (batch,), {}, key, method)
            return outputs, indices

        return jax.jit(run, out_shardings=replicated(self._mesh))

    def lower(
        self, shape: tuple[int, ...], topology: Topology, *, name: str, **named: Any
    ) -> Ahead:
        """Compiles a batch of this shape ahead of time, on a mesh over the topology's devices.

        Args:
          shape: shape of the batch, (n, …).
          topology: has the mesh's devices.
          name: name of the program in the report.
          **named: see `Runner.submit`; shapes and dtypes are enough.
        """
        state = (self._model.params, self._model.buffers)
        batch = jax.ShapeDtypeStruct(shape, jnp.float32)
        inputs = abstract((batch, named), self._rows)
        arguments = (abstract(state, replicated(self._mesh)), *inputs)
        return compile_ahead(self._run, arguments, topology, name=name)


def open_ahead(
    network: "nn.Module",
    topology: Topology,
    options: ComputeOptions,
    *,
    around: Around = only_network,
    lane_folding: Choice = "auto",
) -> JaxRunner:
    """Returns a runner over all devices of a topology for `lower`; see `open_runner`."""
    mesh = make_mesh(len(topology.devices), topology.devices)
    return JaxRunner(
        network, mesh=mesh, dtype=options.dtype, around=around, lane_folding=lane_folding
    )
