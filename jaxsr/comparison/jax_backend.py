"""The JAX engine in a comparison: as one program, and operation by operation.

The recording program returns the recorded tensors as further results, without callbacks from the
device. Every trace checks whether recording changes the results. Statistics are taken on the host:
in the program they would make compilation several times longer.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.typing import ArrayLike

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.calls import Call
from jaxsr.comparison.emulate_bf16_matmul import emulate_bf16_matmul
from jaxsr.comparison.jax_runs import JaxRuns, as_run
from jaxsr.comparison.op_recorder import (
    Granularity,
    Observer,
    OpRecorder,
    Record,
    StatisticsObserver,
    replay_call,
)
from jaxsr.comparison.torch_backend import cast_network
from jaxsr.comparison.torch_runs import RunResult, cotangent
from jaxsr.comparison.workload import Inputs, Workload, run_key
from jaxsr.errors import DeviceError
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.folding.policy import LaneFolding
from jaxsr.interop.hooks import constant_of, run_torch, value_of, watched
from jaxsr.interop.host_arrays import to_numpy, to_torch
from jaxsr.interop.module import to_jax
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.train.gradients import Arrays

RECORD_BYTES = 1 << 30
"""Byte limit of the tensors that one run returns; larger recordings are split."""


class JaxBackend:
    """Runs a workload's network in JAX.

    Args:
      workload: the network.
      side: where, and in which dtype and precision.
      record_bytes: see `RECORD_BYTES`.
      lane_folding: as for `to_jax`.

    Raises:
      DeviceError: JAX finds no device of the platform asked for.
      UnsupportedTorchError: the network does something that JAX would compute differently.
    """

    fused = True
    """A run is one fused program, not its operations one by one."""

    def __init__(
        self,
        workload: Workload,
        side: BackendSpec,
        *,
        record_bytes: int = RECORD_BYTES,
        lane_folding: LaneFolding | None = None,
    ) -> None:
        self.side, self.record_bytes, self._train = side, record_bytes, workload.train
        self.device = find_device(side.platform)
        network, narrow = workload.network, side.dtype != "float32"
        if narrow and not workload.casts_buffers:
            network = cast_network(copy_module(network), getattr(torch, side.dtype), False)
        compute_dtype = jnp.dtype(side.dtype) if narrow and workload.casts_buffers else None
        with jax.default_device(self.device):
            self._module = to_jax(network, compute_dtype=compute_dtype, lane_folding=lane_folding)
        self._state = jax.device_put((self._module.params, self._module.buffers), self.device)
        self._programs: dict[tuple, list[tuple[jax.stages.Compiled, _TracedObserver]]] = {}
        self._calls: dict[tuple | str, Callable] = {}
        self.inconsistent = False

    def describe(self) -> dict[str, str]:
        """Device and settings, for a trace's header."""
        return {
            "device": f"{self.device.platform}: {self.device.device_kind}",
            "computed": "as one compiled program",
            "matmul_precision": self.side.precision,
        }

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        precision = self.side.precision
        precision = None if precision in ("default", "bfloat16") else precision
        with jax.default_device(self.device), jax.default_matmul_precision(precision):
            yield

    def _rounding(self, function: Callable) -> Callable:
        return emulate_bf16_matmul(function) if self.side.precision == "bfloat16" else function

    def _apply(self, state: tuple[Arrays, Arrays], inputs: Inputs) -> PyTree:
        args, kwargs = inputs
        rng = run_key() if self._train else None
        return self._module.call(*state, args, kwargs, rng=rng, train=self._train)[0]

    def _cast(self, inputs: Inputs) -> Inputs:
        """Floating inputs in the side's dtype, as a network in that dtype gets them."""
        dtype = jnp.dtype(self.side.dtype)

        def cast(x: Any) -> Any:
            is_floating = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
            return x.astype(dtype) if is_floating else x

        return jax.tree.map(cast, inputs)

    def run(self, inputs: Inputs) -> PyTree:
        """One step as one program, without recording; host arrays."""
        inputs = self._cast(inputs)
        program = self._calls.setdefault("run", jax.jit(self._rounding(self._apply)))
        with self._settings():
            return jax.device_get(program(self._state, inputs))

    def grad(self, inputs: Inputs) -> RunResult:
        """One step as one program: outputs, buffers, and gradients for the outputs' cotangents."""
        runs = JaxRuns(self._module, Arguments.of(*self._cast(inputs)))
        arguments = (self._state, runs.inputs(), run_key())
        with self._settings():
            shapes, _ = jax.eval_shape(runs.forward(train=self._train), *arguments)
            weights = {
                name: jnp.asarray(cotangent(name, shape.shape))
                for name, shape in shapes.items()
                if jnp.issubdtype(shape.dtype, jnp.inexact)
            }
            program = jax.jit(self._rounding(runs.gradient(train=self._train)))
            return as_run(*program(*arguments, weights))

    def record(
        self,
        inputs: Inputs,
        *,
        step: int,
        granularity: Granularity = "operation",
        keep: Sequence[str] = (),
        alone: bool = False,
    ) -> tuple[PyTree, list[Record]]:
        """One step and its records; see `jaxsr.comparison.recorded_trace.make_trace`."""
        if alone:
            observer = StatisticsObserver(self.value, keep=keep)
            outputs = self.observe(inputs, observer, step=step, granularity=granularity)
            return outputs, observer.records
        inputs = self._cast(inputs)
        shapes = tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(inputs))
        key = (shapes, granularity, tuple(keep))
        with self._settings():
            if key not in self._programs:
                self._programs[key] = self._compiled(inputs, granularity, keep)
            records: list[Record] = []
            results = []
            for program, observer in self._programs[key]:
                outputs, arrays = program(self._state, inputs)
                results.append(jax.device_get(outputs))
                records = observer.records_of(arrays, step, records)
        self.inconsistent = self.inconsistent or not all(
            _equal(results[0], other) for other in results[1:]
        )
        return results[0], records

    def _compiled(
        self, inputs: Inputs, granularity: Granularity, keep: Sequence[str]
    ) -> list[tuple[jax.stages.Compiled, "_TracedObserver"]]:
        """Programs that return every recorded tensor, each at most `record_bytes` of them."""
        programs: list[tuple[jax.stages.Compiled, _TracedObserver]] = []
        while not programs or programs[-1][1].more:
            observer = _TracedObserver(keep, window=len(programs), budget=self.record_bytes)
            recorder = OpRecorder(observer, granularity=granularity, constant_of=constant_of)

            def program(
                state: tuple[Arrays, Arrays],
                inputs: Inputs,
                observer: _TracedObserver = observer,
                recorder: OpRecorder = recorder,
            ) -> PyTree:
                with watched(recorder):
                    return self._apply(state, inputs), observer.taken

            programs.append(
                (jax.jit(self._rounding(program)).lower(self._state, inputs).compile(), observer)
            )
        return programs

    def observe(
        self,
        inputs: Inputs,
        observer: Observer,
        *,
        step: int,
        granularity: Granularity = "operation",
    ) -> PyTree:
        """One step operation by operation; the observer is called for each.

        Raises:
          ValueError: see `BackendSpec.check_operations_alone`.
        """
        self.side.check_operations_alone()
        recorder = OpRecorder(observer, step=step, granularity=granularity, constant_of=constant_of)
        with self._settings(), watched(recorder):
            outputs = self._apply(self._state, jax.device_put(self._cast(inputs), self.device))
        return jax.device_get(outputs)

    def value(self, tensor: torch.Tensor) -> np.ndarray | None:
        """An operand or result as an array; None inside another JAX transformation."""
        array = value_of(tensor)
        return None if array is None else np.asarray(array)

    def weight(self, name: str) -> np.ndarray:
        """A parameter or buffer."""
        return np.asarray(self._array(name))

    def _array(self, name: str) -> jax.Array:
        name = self._module.aliases.get(name, name)
        params, buffers = self._state
        return params[name] if name in params else buffers[name]

    def call(self, call: Call, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """One operation compiled alone; parameters and constants where an input is None."""
        program = call.program
        assert program is not None

        def run(*values: jax.Array | torch.Tensor) -> list[jax.Array]:
            return run_torch(lambda *tensors: replay_call(program, list(tensors)), *values)

        return self._alone("call", call, self._operands(call, inputs), run)

    def gradients(self, call: Call, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Gradients by floating operands, of the sum of the results times their `cotangent`."""
        program = call.program
        assert program is not None
        values = self._operands(call, inputs)
        floats = [
            k
            for k, value in enumerate(values)
            if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)
        ]

        def loss(chosen: list[jax.Array], values: tuple) -> jax.Array:
            filled = dict(zip(floats, chosen, strict=True))
            operands = [filled.get(k, value) for k, value in enumerate(values)]
            results = run_torch(lambda *tensors: replay_call(program, list(tensors)), *operands)
            products = [
                (r.astype(jnp.float32) * cotangent(str(k), r.shape)).sum()
                for k, r in enumerate(results)
                if jnp.issubdtype(r.dtype, jnp.floating)
            ]
            return jnp.asarray(sum(products), jnp.float32)

        def run(*values: jax.Array | torch.Tensor) -> list[jax.Array]:
            return jax.grad(loss)([values[k] for k in floats], values)

        if not floats:
            return [None] * len(values)
        gradients = dict(zip(floats, self._alone("gradients", call, values, run), strict=True))
        return [gradients.get(k) for k in range(len(values))]

    def _operands(
        self, call: Call, inputs: Sequence[np.ndarray | None]
    ) -> list[jax.Array | torch.Tensor]:
        """Arrays; a constant of the program stays a tensor."""
        values: list[jax.Array | torch.Tensor] = []
        for place, (operand, value) in enumerate(zip(call.operands, inputs, strict=True)):
            if value is not None:
                values.append(_as_dtype(value, operand.dtype))
            elif operand.kind == "parameter":
                values.append(_as_dtype(self._array(operand.name), operand.dtype))
            else:
                assert call.program is not None
                values.append(call.program.constants[place])
        return values

    def _alone(self, kind: str, call: Call, values: list, run: Callable) -> list[np.ndarray]:
        """Runs one operation's function: compiled, where its operands are all arrays."""
        assert call.program is not None
        with self._settings():
            if any(isinstance(v, torch.Tensor) for v in values):
                return [np.asarray(x) for x in self._rounding(lambda: run(*values))()]
            shapes = tuple((v.shape, str(v.dtype)) for v in values)
            program = call.program
            key = (kind, program.function, repr(program.tree), repr(program.leaves), shapes)
            compiled = self._calls.setdefault(key, jax.jit(self._rounding(run)))
            try:
                return [np.asarray(x) for x in compiled(*values)]
            except UnsupportedTorchError:
                if kind != "call":
                    raise
                # Some functions need the values of tensors that were constants of the program.
                known = [to_torch(np.asarray(v)) for v in values]
                return [np.asarray(x) for x in self._rounding(lambda: run(*known))()]


class _TracedObserver(StatisticsObserver):
    """Collects calls while a program is traced, and the tensors that it is to return.

    Args:
      keep: patterns of operations whose operands are returned as well.
      window: number of this program; it returns only the tensors of its turn.
      budget: bytes of tensors in each turn.
    """

    def __init__(self, keep: Sequence[str], *, window: int, budget: int) -> None:
        super().__init__(_traced_value, keep=keep)
        self.taken: list[dict[str, jax.Array]] = []
        self._window, self._budget = window, budget
        self._bytes = 0
        self._calls: list[tuple[Call, dict[str, np.ndarray]]] = []

    @property
    def more(self) -> bool:
        """Whether tensors are left for another program."""
        return self._bytes // self._budget > self._window

    def take(self, call: Call, arrays: dict[str, Any]) -> None:
        known = {name: v for name, v in arrays.items() if isinstance(v, np.ndarray)}
        traced = {name: v for name, v in arrays.items() if name not in known}
        turn = self._bytes // self._budget
        self._bytes += sum(array.nbytes for array in traced.values())
        self._calls.append((call, known))
        self.taken.append(traced if turn == self._window else {})

    def records_of(
        self, arrays: list[dict[str, jax.Array]], step: int, before: list[Record]
    ) -> list[Record]:
        """The records of all calls, those of earlier windows taken over from `before`."""
        made = []
        for number, (call, known) in enumerate(self._calls):
            values = {name: np.asarray(value) for name, value in arrays[number].items()} | known
            arrays[number] = {}  # the device may have the memory back
            if before and before[number].figures:
                made.append(before[number])
            else:
                made.append(self.record(replace(call, step=step), values))
        return made


def _traced_value(tensor: torch.Tensor) -> jax.Array | np.ndarray | None:
    """The program's array; of a constant, which needs no place in the results, its values."""
    constant = constant_of(tensor)
    if constant is None:
        return value_of(tensor)
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return np.array(to_numpy(constant))


def _equal(first: PyTree, second: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def find_device(platform: str) -> Any:
    """The first device of a platform.

    Raises:
      DeviceError: there is no such device, or JAX was built without it.
    """
    try:
        return jax.devices(None if platform == "auto" else platform)[0]
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(
            f"platform {platform!r} is not usable here: {reason}; use platform=auto or cpu"
        ) from error


def _as_dtype(value: ArrayLike, torch_name: str) -> jax.Array:
    """An array in the JAX dtype that carries a torch dtype."""
    dtype = {"int64": "int32", "uint64": "uint32"}.get(torch_name, torch_name)
    return jnp.asarray(value).astype(jnp.dtype(dtype))
