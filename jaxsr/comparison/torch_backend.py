"""The torch engine in a comparison."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.utils import _pytree as pytree

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.calls import Call, Program
from jaxsr.comparison.op_recorder import (
    Granularity,
    Observer,
    OpRecorder,
    Record,
    StatisticsObserver,
    replay_call,
)
from jaxsr.comparison.workload import Inputs, Workload
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.eager_control_flow import eager_control_flow
from jaxsr.interop.host_arrays import to_numpy, to_torch
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.torch_evaluation import evaluated
from jaxsr.runtime.setup import torch_device


class TorchBackend:
    """Runs a workload's network in torch, eagerly.

    Raises:
      DeviceError: torch finds no device of the platform asked for.
    """

    fused = False
    """Whether a run is one fused program, not its operations one by one."""
    inconsistent = False
    """Whether programs that record different tensors gave different results."""

    def __init__(self, workload: Workload, side: BackendSpec) -> None:
        self.side = side
        self.device = torch.device(torch_device(side.platform))
        self.dtype = getattr(torch, side.dtype)
        plain = self.device.type == "cpu" and side.dtype == "float32"
        network = workload.network if plain else copy_module(workload.network)
        self.network = cast_network(network, self.dtype, workload.casts_buffers).to(self.device)
        self._weights = dict(self.network.named_parameters())
        self._weights |= dict(self.network.named_buffers())

    def describe(self) -> dict[str, str]:
        """Device and settings, for a trace's header."""
        kind = "cpu" if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)
        precision = self.side.precision
        if precision == "default":
            precision = torch.get_float32_matmul_precision()
        return {
            "device": f"{self.device.type}: {kind}",
            "computed": "eagerly, operation by operation",
            "matmul_precision": precision,
        }

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Sets the precision, which torch keeps per process, and restores it."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(evaluated(self.network))
            stack.enter_context(eager_control_flow())
            if self.side.precision != "default":
                product, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
                stack.callback(torch.set_float32_matmul_precision, product)
                torch.set_float32_matmul_precision(self.side.precision)
                # Plain assignment may be disabled, as torch's tests do.
                same = {n: getattr(cudnn, n) for n in ("enabled", "benchmark", "deterministic")}
                tf32 = self.side.precision == "high"
                stack.enter_context(cudnn.flags(**same, allow_tf32=tf32))
            yield

    def _placed(self, inputs: Inputs) -> Inputs:
        return pytree.tree_map_only(np.ndarray, self._tensor, inputs)

    def _tensor(self, array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor = to_torch(array)
        if tensor.is_floating_point():
            dtype = dtype or self.dtype
        elif dtype is None and tensor.dtype == torch.int32:
            dtype = torch.int64  # torch's own index type
        return tensor.to(self.device, dtype)

    def run(self, inputs: Inputs) -> PyTree:
        """One step without recording; host arrays as the network nests its results."""
        args, kwargs = self._placed(inputs)
        with self._settings():
            return to_host(self.network(*args, **kwargs))

    def observe(
        self,
        inputs: Inputs,
        observer: Observer,
        *,
        step: int,
        granularity: Granularity = "operation",
    ) -> PyTree:
        """One step; the observer is called for every operation."""
        args, kwargs = self._placed(inputs)
        recorder = OpRecorder(observer, step=step, granularity=granularity)
        with self._settings(), recorder(self.network, args, kwargs):
            outputs = self.network(*args, **kwargs)
        return to_host(outputs)

    def record(
        self,
        inputs: Inputs,
        *,
        step: int,
        granularity: Granularity = "operation",
        keep: Sequence[str] = (),
        alone: bool = False,
    ) -> tuple[PyTree, list[Record]]:
        """One step and its records."""
        observer = StatisticsObserver(to_numpy, keep=keep)
        return self.observe(inputs, observer, step=step, granularity=granularity), observer.records

    def value(self, tensor: torch.Tensor) -> np.ndarray:
        """An operand or result as an array."""
        return to_numpy(tensor)

    def weight(self, name: str) -> np.ndarray:
        """A parameter or buffer."""
        return to_numpy(self._weights[name])

    def call(self, call: Call, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """One operation alone; parameters and constants where an input is None.

        In float64 every floating operand is widened, and so is every dtype that the code names.
        """
        program = call.program
        assert program is not None
        tensors = []
        for place, (operand, value) in enumerate(zip(call.operands, inputs, strict=True)):
            dtype = getattr(torch, operand.dtype)
            if self.side.dtype == "float64" and dtype.is_floating_point:
                dtype = torch.float64
            if value is not None:
                tensor = to_torch(value).to(self.device, dtype)
            elif operand.kind == "parameter":
                tensor = self._weights[operand.name].detach()
            else:
                tensor = program.constants[place].to(self.device, dtype)
            tensors.append(tensor)
        if program.in_place:
            tensors[0] = tensors[0].clone()
        if self.side.dtype == "float64":
            program = _widened(program)
        with self._settings():
            return [to_numpy(t) for t in replay_call(program, tensors)]


def cast_network(network: torch.nn.Module, dtype: torch.dtype, buffers: bool) -> torch.nn.Module:
    """The network in another dtype, in place; buffers only if asked, and always in float64."""
    if buffers or dtype == torch.float64:
        return network.to(dtype)
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return network


def to_host(outputs: PyTree) -> PyTree:
    """Host arrays for tensors; the caller may keep them."""
    return pytree.tree_map_only(torch.Tensor, lambda t: np.array(to_numpy(t)), outputs)


def _widened(program: Program) -> Program:
    leaves = tuple(
        torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf
        for leaf in program.leaves
    )
    return replace(program, leaves=leaves)
