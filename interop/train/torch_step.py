# pyright: reportUnknownMemberType=false
"""The same training step in plain PyTorch, on CPU or CUDA, eager or compiled.

It takes the objective, the phases, the optimiser configuration and the prepared batches that
`jaxsr.interop.train.step` takes, so that the two differ only in the engine.
"""

import contextlib
import copy
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from jaxsr.interop._core.index_bounds import checked_torch
from jaxsr.interop._core.module_checks import input_versions, tensors_made, written_input
from jaxsr.interop.eager_control_flow import eager_control_flow
from jaxsr.interop.errors import InputError, RefusedValueError, UserError
from jaxsr.interop.host_arrays import to_numpy, to_torch
from jaxsr.interop.torch_evaluation import evaluated
from jaxsr.interop.train.objective import DECISIVE, check_slices, checked_loss, refuse_write
from jaxsr.interop.train.optimizers import make_schedule
from jaxsr.interop.train.options import OPTIMIZERS, OptimizerConfig, StepConfig


def make_torch_optimizer(
    config: OptimizerConfig, parameters: Sequence[nn.Parameter] | Sequence[dict[str, Any]]
) -> torch.optim.Optimizer:
    """The `torch.optim` optimiser of this configuration; the caller sets the learning rate.

    Args:
      config: rule and hyper-parameters.
      parameters: or groups of them, as `torch.optim` takes them.

    Raises:
      InputError: the rule is optax's.
    """
    parameters = [*parameters]  # type: ignore[assignment]
    decay, eps = config.weight_decay, config.epsilon
    match config.optimizer:
        case "adam":
            return torch.optim.Adam(parameters, config.lr, config.betas, eps, decay)
        case "adamw":
            return torch.optim.AdamW(parameters, config.lr, config.betas, eps, decay)
        case "adagrad":
            return torch.optim.Adagrad(parameters, config.lr, weight_decay=decay, eps=eps)
        case "sgd":
            return torch.optim.SGD(
                parameters,
                config.lr,
                config.momentum,
                config.dampening,
                decay,
                nesterov=config.nesterov,
            )
        case _:
            raise InputError(
                f"optimizer {config.optimizer} is optax's, which torch lacks; use --engine jax, or "
                f"one of {', '.join(OPTIMIZERS)}"
            )


def _same(tensor: Tensor) -> Tensor:
    return tensor


class NonFiniteError(UserError, ArithmeticError):
    """A loss or a gradient is not a finite number."""


class TorchStep:
    """Trains an objective in place.

    Args:
      objective: networks and losses; moved to `device`.
      optimizers: configuration by network.
      updates: number of updates over which each network's schedule runs.
      exported: network whose moving average is kept.
      config: accumulation, moving average and compute dtype; `batch_norm` makes no difference
        on one device.
      device: `cpu`, `cuda` or any torch device.
      compiled: run the objective's networks through `torch.compile`; a name is its mode.
      channels_last: keep activations NHWC in memory.
      check_finite: wait for every loss and stop where one is not finite, the state as it was
        before that step.
      norms: report `param_norm` and `update_norm`, which copies the parameters once a step.
      lr_factors: factors of the learning rate by the objective's parameter names.
    """

    def __init__(
        self,
        objective: Any,
        optimizers: Mapping[str, OptimizerConfig],
        updates: Mapping[str, int],
        *,
        exported: str,
        config: StepConfig | None = None,
        device: str = "cpu",
        compiled: bool | str = False,
        channels_last: bool = False,
        check_finite: bool = True,
        norms: bool = True,
        lr_factors: Mapping[str, float] | None = None,
    ) -> None:
        self.config = config or StepConfig()
        self.device = torch.device(device)
        layout = torch.channels_last if channels_last else torch.preserve_format
        self.objective = objective.to(self.device, memory_format=layout).train()
        self.layout = layout
        self._check_finite, self._norms = check_finite, norms
        self.step = 0
        self.updates_done = dict.fromkeys(optimizers, 0)
        self._configs = dict(optimizers)
        self._clip = {name: c.clip_norm for name, c in optimizers.items()}
        self._schedules = {n: make_schedule(c, updates[n]) for n, c in optimizers.items()}
        self._parameters = {
            network: {
                name: parameter
                for name, parameter in self._network(network).named_parameters()
                if parameter.requires_grad
            }
            for network in optimizers
        }
        self._optimizers = {
            n: make_torch_optimizer(c, self._groups(n, lr_factors or {}))
            for n, c in optimizers.items()
        }
        self._names = {*_all_names(self.objective)}
        self._begun: set[str] = set()
        self.exported = exported
        self.ema: dict[str, Tensor] = {}
        if self.config.ema:
            self.ema = {
                f"{exported}.{n}": p.detach().clone() for n, p in self._parameters[exported].items()
            }
        if self.config.dtype != "float32":
            self._compute_in(getattr(torch, self.config.dtype))
        if compiled:
            mode = compiled if isinstance(compiled, str) else None
            for name in optimizers:
                self._network(name).compile(mode=mode)

    def _network(self, name: str) -> nn.Module:
        return self.objective.get_submodule(name)

    def _groups(self, network: str, factors: Mapping[str, float]) -> list[dict[str, Any]]:
        """Trained parameters by their factor of the learning rate."""
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in self._parameters[network].items():
            groups.setdefault(factors.get(f"{network}.{name}", 1.0), []).append(parameter)
        return [{"params": group, "lr_factor": factor} for factor, group in groups.items()]

    def _compute_in(self, dtype: torch.dtype) -> None:
        """Runs every player's network under autocast and hands float32 on."""
        for name in self._optimizers:
            network = self._network(name)
            network.forward = torch.autocast(self.device.type, dtype)(network.forward)
            network.register_forward_hook(
                lambda _, inputs, outputs: pytree.tree_map_only(
                    torch.Tensor, lambda x: x.float(), outputs
                )
            )

    def train_step(
        self,
        phase_name: str,
        batch: Mapping[str, np.ndarray | Tensor],
        *,
        uncut: Collection[str] = (),
    ) -> dict[str, Tensor]:
        """One step of the phase on a prepared batch; returns metrics by `network/name`.

        Args:
          phase_name: of the objective.
          batch: prepared.
          uncut: names of arrays that every slice of `accumulate` sees whole.

        Raises:
          NonFiniteError: a loss or gradient is not finite; the state is as it was before.
          RefusedValueError: torch refuses a value, as an index out of range; likewise.
        """
        if not self._check_finite:
            return self._train_step(phase_name, batch, uncut)
        undo = self._snapshot(phase_name)
        try:
            return self._train_step(phase_name, batch, uncut)
        except NonFiniteError:
            undo()
            raise
        except (IndexError, RuntimeError):  # torch raises it for indices, among much else
            undo()
            self._check_indices(phase_name, batch)
            raise

    def _check_indices(self, phase_name: str, batch: Mapping[str, np.ndarray | Tensor]) -> None:
        """Runs the phase forward once more, to name the index that torch refused, if it did.

        Whatever else fails here is not raised: the step's own error says more.
        """
        phase = self.objective.phase(phase_name)
        tensors = {name: self.place(rows) for name, rows in batch.items()}
        try:
            with evaluated(self.objective), eager_control_flow(), checked_torch():
                shared = getattr(self.objective, phase.share)(tensors)
                for player in phase.players:
                    getattr(self.objective, player.loss)(shared, tensors)
        except RefusedValueError:
            raise
        except Exception:  # the caller raises that of the step
            return

    def _snapshot(self, phase_name: str) -> Callable[[], None]:
        """Copies the state that a step may change before a loss fails; returns a way to restore it.

        The last player's parameters are not among it: they move after every check.
        """
        updated = [player.network for player in self.objective.phase(phase_name).players[:-1]]
        put_back = _buffers_now(self.objective)
        tensors: dict[str, Tensor] = {}
        for network in updated:
            tensors |= {f"{network}.{n}": p for n, p in self._parameters[network].items()}
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        optimizers = {n: copy.deepcopy(self._optimizers[n].state_dict()) for n in updated}
        updates_done = dict(self.updates_done)

        def undo() -> None:
            put_back()
            with torch.no_grad():
                for name, value in copies.items():
                    tensors[name].copy_(value)
            for name, state in optimizers.items():
                self._optimizers[name].load_state_dict(state)
            self.updates_done = updates_done

        return undo

    def _train_step(
        self,
        phase_name: str,
        batch: Mapping[str, np.ndarray | Tensor],
        uncut: Collection[str],
    ) -> dict[str, Tensor]:
        phase = self.objective.phase(phase_name)
        tensors = {name: self.place(rows) for name, rows in batch.items()}
        metrics: dict[str, Tensor] = {}
        slices = self.config.accumulate
        for name in tensors.keys() - uncut if slices > 1 else ():
            check_slices(len(tensors[name]), slices)
        shared = self._computed(phase.share, tensors) if slices == 1 else None
        for turn, player in enumerate(phase.players):
            # A player that sees the shared tensors detached leaves their graph alone.
            later = any(other.through_shared for other in phase.players[turn + 1 :])
            retain = shared is not None and player.through_shared and later
            # The generator's pass also reaches the discriminator's parameters.
            self._optimizers[player.network].zero_grad(set_to_none=True)
            sums: dict[str, Tensor] = {}
            for index in range(slices):
                rows = tensors
                if slices > 1:
                    rows = {n: x if n in uncut else x[index::slices] for n, x in tensors.items()}
                common = shared
                if common is None:
                    common = self._shared(phase.share, rows, keep_buffers=turn == 0)
                # A player's own containers, so that no loss sees another's entries.
                common = pytree.tree_map_only(
                    Tensor, _same if player.through_shared else Tensor.detach, common
                )
                is_last = turn == len(phase.players) - 1
                result = self._computed(player.loss, common, rows, is_last=is_last)
                loss, reported = checked_loss(result, player.loss)
                (loss / slices).backward(retain_graph=retain)
                for name, value in {"loss": loss, **reported}.items():
                    sums[name] = sums.get(name, 0) + value.detach() / slices
            sums["grad_norm"] = self._clip_gradients(player.network)
            if self._check_finite:
                self._refuse_not_finite(player.network, sums)
            sums |= self._update(player.network)
            metrics |= {f"{player.network}/{name}": value for name, value in sums.items()}
        self._refuse_new_tensors(phase_name)
        self._update_ema()
        self.step += 1
        return metrics

    def _shared(self, method: str, rows: dict[str, Tensor], *, keep_buffers: bool) -> Any:
        """The shared tensors of a slice; buffers that they update count for one player."""
        if keep_buffers:
            return self._computed(method, rows)
        put_back = _buffers_now(self.objective)
        common = self._computed(method, rows)
        put_back()
        return common

    def _computed(self, method: str, *arguments: Any, is_last: bool = False) -> Any:
        """A method's result; writes into its arguments are refused where another reads them."""
        versions = input_versions(arguments)
        result = getattr(self.objective, method)(*arguments)
        if not is_last:
            refuse_write(self.objective, method, written_input(versions, arguments))
        return result

    def _refuse_new_tensors(self, phase: str) -> None:
        """Refuses parameters and buffers that the first step of a phase made."""
        if phase not in self._begun and (made := tensors_made(self.objective, self._names)):
            raise InputError(made)
        self._begun.add(phase)

    def _refuse_not_finite(self, network: str, metrics: Mapping[str, Tensor]) -> None:
        for name in DECISIVE:
            if not torch.isfinite(value := metrics[name]):
                raise NonFiniteError(f"{network}/{name} is {value.item()} at step {self.step + 1}")

    def place(self, rows: np.ndarray | Tensor) -> Tensor:
        """One array of a batch on the device, in the chosen memory layout."""
        if isinstance(rows, Tensor):
            return rows
        tensor = to_torch(np.array(rows)).to(self.device, non_blocking=True)
        if tensor.dtype == torch.int32:  # of int64, as JAX holds it; torch's losses want int64
            tensor = tensor.long()
        return tensor.to(memory_format=self.layout) if tensor.ndim == 4 else tensor

    def _clip_gradients(self, network: str) -> Tensor:
        """Clips the gradients; returns their norm before."""
        parameters = list(self._parameters[network].values())
        limit = self._clip[network]
        if limit is not None:
            return nn.utils.clip_grad_norm_(parameters, limit)
        return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    def _update(self, network: str) -> dict[str, Tensor]:
        """One optimiser step; returns the learning rate, and the norms where they are asked for."""
        optimizer, parameters = self._optimizers[network], list(self._parameters[network].values())
        lr = float(np.asarray(self._schedules[network](self.updates_done[network])))
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        self.updates_done[network] += 1
        for parameter in parameters:
            if parameter.grad is None:
                self._count_unused(network, parameter)
        if not self._norms:
            optimizer.step()
            return {"lr": torch.tensor(lr)}
        before = [p.detach().clone() for p in parameters]
        optimizer.step()
        changes = [p.detach() - old for p, old in zip(parameters, before, strict=True)]
        return {
            "lr": torch.tensor(lr),
            "param_norm": nn.utils.get_total_norm(before),
            "update_norm": nn.utils.get_total_norm(changes),
        }

    def _count_unused(self, network: str, parameter: nn.Parameter) -> None:
        """Counts an update for a parameter that no loss reached, and that torch leaves alone.

        optax counts the updates of a network, in case another phase uses it.
        """
        state = self._optimizers[network].state[parameter]
        if not state:
            state.update(self._state_after_zeros(network, parameter))
        elif "step" in state:
            state["step"] += 1

    def _state_after_zeros(self, network: str, parameter: Tensor) -> dict[str, Any]:
        """An optimiser's state after one update whose gradient was zero."""
        twin = nn.Parameter(torch.zeros_like(parameter))
        optimizer = make_torch_optimizer(self._configs[network], [twin])
        twin.grad = torch.zeros_like(twin)
        optimizer.step()
        return optimizer.state[twin]

    def _update_ema(self) -> None:
        decay = min(self.config.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, old in self.ema.items():
                new = self._parameters[self.exported][name.removeprefix(f"{self.exported}.")]
                old.mul_(decay).add_(new, alpha=1 - decay)

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint needs, as NumPy arrays."""
        optimizers = {n: self._optimizer_state(n) for n in self._optimizers}
        return {
            "step": np.asarray(self.step),
            "updates_done": {n: np.asarray(c) for n, c in self.updates_done.items()},
            "tensors": {n: _host(t) for n, t in self._tensors().items()},
            "optimizers": optimizers,
            "ema": {n: _host(t) for n, t in self.ema.items()},
        }

    def _tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers; also those that torch leaves out of its state dictionary."""
        return {**dict(self.objective.named_buffers()), **self.objective.state_dict()}

    def _optimizer_state(self, network: str) -> dict[str, dict[str, np.ndarray]]:
        """By parameter; zeros before the first update, where torch has made no state yet."""
        parameters = self._parameters[network]
        states: Mapping[Any, dict[str, Any]] = self._optimizers[network].state
        if self.updates_done[network] == 0:
            states = {p: self._state_after_zeros(network, p) for p in parameters.values()}
        return {
            name: {k: _host(v) for k, v in states[p].items() if v is not None}
            for name, p in parameters.items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Replaces the state by a result of `state`."""
        self.step = int(state["step"])
        self.updates_done = {n: int(c) for n, c in state["updates_done"].items()}
        tensors = {n: to_torch(np.array(a)) for n, a in state["tensors"].items()}
        persistent = self.objective.state_dict()
        self.objective.load_state_dict({n: tensors[n] for n in persistent})
        with torch.no_grad():
            for name, buffer in self.objective.named_buffers():
                if name not in persistent:
                    buffer.copy_(tensors[name])
        for network, entries in state["optimizers"].items():
            if self.updates_done[network] == 0:
                continue  # torch makes the state at the first update
            for name, entry in entries.items():
                parameter = self._parameters[network][name]
                # torch keeps its own step counters on the CPU.
                self._optimizers[network].state[parameter] = {
                    k: to_torch(np.array(a)).to("cpu" if k == "step" else self.device)
                    for k, a in entry.items()
                }
        for name, array in state["ema"].items():
            self.ema[name].copy_(to_torch(np.array(array)))

    @contextlib.contextmanager
    def evaluating(self) -> Generator[None]:
        """Evaluation mode, and back; buffers keep their values, as in JAX."""
        self.objective.eval()
        put_back = _buffers_now(self.objective)
        try:
            with evaluated(self.objective):
                yield
        finally:
            self.objective.train()
            put_back()


def _buffers_now(module: nn.Module) -> Callable[[], None]:
    """Copies the buffers of a module; returns a way to restore them, also where forward assigns."""
    before = {name: (buffer, buffer.detach().clone()) for name, buffer in module.named_buffers()}

    def put_back() -> None:
        for name, (buffer, value) in before.items():
            path, _, key = name.rpartition(".")
            setattr(module.get_submodule(path), key, buffer)
            if not torch.equal(buffer, value):
                buffer.data.copy_(value)  # batch norm's backward reads none of them

    return put_back


def _all_names(module: nn.Module) -> Iterator[str]:
    """Names of parameters and buffers, including all names of a shared tensor."""
    yield from (name for name, _ in module.named_parameters(remove_duplicate=False))
    yield from (name for name, _ in module.named_buffers(remove_duplicate=False))


def _host(value: Tensor | float) -> np.ndarray:
    return to_numpy(value) if isinstance(value, Tensor) else np.asarray(value)
