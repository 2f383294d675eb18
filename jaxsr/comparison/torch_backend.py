"""The torch engine in a comparison."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch.utils import _pytree as pytree

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.calls import Call
from jaxsr.comparison.op_recorder import (
    Granularity,
    Observer,
    OpRecorder,
    Record,
    StatisticsObserver,
    replay_call,
)
from jaxsr.comparison.torch_runs import RunResult, cotangent, run_here, running, widened
from jaxsr.comparison.workload import Inputs, Workload, run_key
from jaxsr.errors import InputError, one_line
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.host_arrays import to_numpy, to_torch
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.torch_evaluation import in_mode
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
        self.side, self.train = side, workload.train
        self.device = torch.device(torch_device(side.platform))
        self.dtype = getattr(torch, side.dtype)
        self._double = side.dtype == "float64"
        if self._double:
            network = widened(workload.network)
        else:
            plain = self.device.type == "cpu" and side.dtype == "float32"
            network = workload.network if plain else copy_module(workload.network)
            network = cast_network(network, self.dtype, workload.casts_buffers)
        self.network = network.to(self.device)
        self._weights = dict(self.network.named_parameters())
        self._buffers = dict(self.network.named_buffers())
        self._weights |= self._buffers

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
    def _precision(self) -> Iterator[None]:
        """Sets the precision, which torch keeps per process, and restores it."""
        with contextlib.ExitStack() as stack:
            if self.side.precision != "default":
                product, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
                stack.callback(torch.set_float32_matmul_precision, product)
                torch.set_float32_matmul_precision(self.side.precision)
                # Plain assignment may be disabled, as torch's tests do.
                same = {n: getattr(cudnn, n) for n in ("enabled", "benchmark", "deterministic")}
                tf32 = self.side.precision == "high"
                stack.enter_context(cudnn.flags(**same, allow_tf32=tf32))
            yield

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        with self._precision(), running(self.network, double=self._double, key=None):
            yield

    def _run(
        self, inputs: Inputs, *, differentiate: bool = False, method: Callable | None = None
    ) -> RunResult:
        """Runs one step; in training or with gradients on a copy, with JAX's draws."""
        copied = self.train or differentiate
        network = in_mode(copy_module(self.network), self.train) if copied else self.network
        try:
            with self._precision():
                return run_here(
                    network,
                    Arguments.of(*self._placed(inputs)),
                    double=self._double,
                    key=run_key() if self.train else None,
                    differentiate=differentiate,
                    method=method,
                    device=str(self.device),
                )
        except NotImplementedError as error:  # kernels of some dtypes, forward or backward
            raise InputError(
                f"{self.side.short} lacks an operation of this network: {one_line(error)}; give "
                "another dtype" + (", or leave --gradients out" if differentiate else "")
            ) from error

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
        return self._run(inputs).tree

    def grad(self, inputs: Inputs) -> RunResult:
        """One step: outputs, buffers, and gradients for the outputs' cotangents."""
        return self._run(inputs, differentiate=True)

    def observe(
        self,
        inputs: Inputs,
        observer: Observer,
        *,
        step: int,
        granularity: Granularity = "operation",
    ) -> PyTree:
        """One step; the observer is called for every operation."""
        recorder = OpRecorder(observer, step=step, granularity=granularity)

        def recorded(network: torch.nn.Module, *args: PyTree, **kwargs: PyTree) -> PyTree:
            with recorder(network, args, kwargs):
                return network(*args, **kwargs)

        return self._run(inputs, method=recorded).tree

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
        tensors = self._operands(call, inputs)
        assert call.program is not None
        with self._settings():
            return [to_numpy(t.detach()) for t in replay_call(call.program, tensors)]

    def gradients(self, call: Call, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        """Gradients by floating operands, of the sum of the results times their `cotangent`."""
        assert call.program is not None
        leaves = self._operands(call, inputs)
        floats = [
            tensor.requires_grad_()
            for tensor, operand in zip(leaves, call.operands, strict=True)
            if tensor.is_floating_point()
            and operand.kind != "constant"
            and operand.name not in self._buffers
        ]
        with self._settings():
            results = replay_call(call.program, [t.view_as(t) for t in leaves])
            products = [
                (r * torch.from_numpy(cotangent(str(k), tuple(r.shape))).to(r)).sum()
                for k, r in enumerate(results)
                if r.requires_grad and r.is_floating_point()
            ]
            if not products or not floats:
                return [None] * len(leaves)
            values = torch.autograd.grad(sum(products), floats, allow_unused=True)  # type: ignore[arg-type]
        gradients = {id(t): g for t, g in zip(floats, values, strict=True) if g is not None}
        return [to_numpy(gradients[id(t)]) if id(t) in gradients else None for t in leaves]

    def _operands(self, call: Call, inputs: Sequence[np.ndarray | None]) -> list[torch.Tensor]:
        tensors = []
        for place, (operand, value) in enumerate(zip(call.operands, inputs, strict=True)):
            dtype = getattr(torch, operand.dtype)
            if self._double and dtype.is_floating_point:
                dtype = torch.float64
            if value is not None:
                tensor = to_torch(value).to(self.device, dtype)
            elif operand.kind == "parameter":
                tensor = self._weights[operand.name]
            else:
                assert call.program is not None
                tensor = call.program.constants[place].to(self.device, dtype)
            tensors.append(tensor.detach().clone())
        return tensors


def cast_network(network: torch.nn.Module, dtype: torch.dtype, buffers: bool) -> torch.nn.Module:
    """The network in another dtype, in place; buffers only if asked."""
    if buffers:
        return network.to(dtype)
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return network
