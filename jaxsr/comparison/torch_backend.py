"""The torch engine as a side of a comparison."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

from jaxsr.comparison.backend_spec import Side
from jaxsr.comparison.calls import Call, Program
from jaxsr.comparison.op_recorder import Ear, Granularity, Listener, call_again
from jaxsr.comparison.trace_records import FiguresEar, Record
from jaxsr.comparison.workload import Inputs, Subject
from jaxsr.errors import InputError

_BITS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}
_FROM_NUMPY = {np.dtype(kind): (bits, dtype) for dtype, (bits, kind) in _BITS.items()}


class TorchSide:
    """Runs a subject's network in torch, eagerly.

    Raises:
      ValueError: torch finds no device of the platform asked for.
    """

    programs_alone = False
    """Whether a whole run is another program than its operations one by one."""
    uneven = False
    """Whether programs that record different tensors gave different results."""

    def __init__(self, subject: Subject, side: Side) -> None:
        cuda = torch.cuda.is_available()
        if side.platform == "cuda" and not cuda:
            raise InputError("platform cuda is not usable: torch finds no CUDA device; use cpu")
        self.side = side
        self.device = torch.device("cuda" if cuda and side.platform != "cpu" else "cpu")
        self.dtype = getattr(torch, side.dtype)
        plain = self.device.type == "cpu" and side.dtype == "float32"
        network = subject.network if plain else copy.deepcopy(subject.network)
        self.network = cast_network(network, self.dtype, subject.casts_buffers).to(self.device)
        self._own = dict(self.network.named_parameters())
        self._own |= dict(self.network.named_buffers())

    def describe(self) -> dict[str, str]:
        """Device and settings, for a trace's header."""
        kind = "cpu" if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)
        return {
            "device": f"{self.device.type}: {kind}",
            "computed": "eagerly, operation by operation",
            "matmul_precision": torch.get_float32_matmul_precision()
            if self.side.precision == "default"
            else self.side.precision,
        }

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """The precision asked for; torch keeps it for the whole process."""
        if self.side.precision == "default":
            with torch.no_grad():
                yield
            return
        product = torch.get_float32_matmul_precision()
        cudnn = torch.backends.cudnn
        torch.set_float32_matmul_precision(self.side.precision)
        # Torch may have been told to refuse a plain assignment, which its own tests do.
        convolutions = cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            deterministic=cudnn.deterministic,
            allow_tf32=self.side.precision == "high",
        )
        try:
            with convolutions, torch.no_grad():
                yield
        finally:
            torch.set_float32_matmul_precision(product)

    def _placed(self, inputs: Inputs) -> Inputs:
        return pytree.tree_map_only(np.ndarray, self._tensor, inputs)

    def _tensor(self, array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor = to_torch(array)
        if tensor.is_floating_point():
            dtype = dtype or self.dtype
        elif dtype is None and tensor.dtype == torch.int32:
            dtype = torch.int64  # torch's own index type
        return tensor.to(self.device, dtype)

    def run(self, inputs: Inputs) -> Any:
        """One step without anybody listening; host arrays as the network nests its results."""
        args, kwargs = self._placed(inputs)
        with self._settings():
            return to_host(self.network.forward(*args, **kwargs))

    def listen(
        self, inputs: Inputs, ear: Ear, *, step: int, granularity: Granularity = "operation"
    ) -> Any:
        """One step with an ear on every operation."""
        args, kwargs = self._placed(inputs)
        listener = Listener(ear, step=step, granularity=granularity)
        with self._settings(), listener(self.network, args, kwargs):
            outputs = self.network.forward(*args, **kwargs)
        return to_host(outputs)

    def record(
        self,
        inputs: Inputs,
        *,
        step: int,
        granularity: Granularity = "operation",
        keep: Sequence[str] = (),
        alone: bool = False,
    ) -> tuple[Any, list[Record]]:
        """One step and its records."""
        ear = FiguresEar(to_numpy, keep=keep)
        return self.listen(inputs, ear, step=step, granularity=granularity), ear.records

    def value(self, tensor: torch.Tensor) -> np.ndarray:
        """An operand or result that an ear was given."""
        return to_numpy(tensor)

    def own(self, name: str) -> np.ndarray:
        """A parameter or buffer."""
        return to_numpy(self._own[name])

    def call(self, call: Call, given: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """One operation alone: its own parameters and constants where `given` is None.

        In float64 every floating operand is widened, and so is every dtype that the code names.
        """
        program = call.program
        assert program is not None
        tensors = []
        for place, (operand, value) in enumerate(zip(call.operands, given, strict=True)):
            dtype = self._own_dtype(operand.dtype)
            if value is not None:
                tensor = to_torch(value).to(self.device, dtype)
            elif operand.kind == "parameter":
                tensor = self._own[operand.name].detach()
            else:
                tensor = program.constants[place].to(self.device, dtype)
            tensors.append(tensor)
        if program.in_place:
            tensors[0] = tensors[0].clone()
        if self.side.dtype == "float64":
            program = _widened(program)
        with self._settings():
            return [to_numpy(t) for t in call_again(program, tensors)]

    def _own_dtype(self, name: str) -> torch.dtype:
        dtype = getattr(torch, name)
        return torch.float64 if self.side.dtype == "float64" and dtype.is_floating_point else dtype


def cast_network(network: torch.nn.Module, dtype: torch.dtype, buffers: bool) -> torch.nn.Module:
    """The network in another dtype, in place; buffers only if asked, and always in float64."""
    if buffers or dtype == torch.float64:
        return network.to(dtype)
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return network


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values on the host, bfloat16 and float8 included; may share its memory."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in _BITS:
        bits, dtype = _BITS[tensor.dtype]
        return tensor.contiguous().view(bits).numpy().view(dtype)
    return tensor.resolve_neg().numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The other way; copies what torch could not write into."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype in _FROM_NUMPY:
        bits, dtype = _FROM_NUMPY[array.dtype]
        return torch.from_numpy(array.view(str(bits).removeprefix("torch."))).view(dtype)
    return torch.from_numpy(array)


def to_host(outputs: Any) -> Any:
    """Host arrays for tensors; the caller may keep them."""
    return pytree.tree_map_only(torch.Tensor, lambda t: np.array(to_numpy(t)), outputs)


def _widened(program: Program) -> Program:
    leaves = tuple(
        torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf
        for leaf in program.leaves
    )
    return Program(program.function, program.tree, leaves, program.constants, program.in_place)
