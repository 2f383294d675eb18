"""The examples as modules, and the training loop that they are compared with."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from jaxsr.training.task_run import TaskRun
from tests.training.running import take_steps

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load_example(folder: str, name: str | None = None) -> ModuleType:
    """A file of `examples` as a module; `sys.modules` has it under its own name."""
    name = name or folder
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def train_plain(task: Any, config: Any, steps: int) -> tuple[list[float], nn.Module]:
    """AdamW at a constant rate, as anyone would write it, on the task's batches."""
    torch.manual_seed(config.seed)
    user = task(config)
    network = user.network().train()
    learning = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        learning, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
    )
    losses = []
    with TaskRun("example:Task", task, config).batches(0, host=0, hosts=1) as batches:
        for _ in range(steps):
            tensors = {name: torch.from_numpy(rows) for name, rows in next(batches).items()}
            batch = {n: t.long() if t.dtype == torch.int32 else t for n, t in tensors.items()}
            result = user.loss(network, batch)
            loss = result[0] if isinstance(result, tuple) else result
            optimizer.zero_grad()
            loss.backward()
            if config.clip_norm is not None:
                nn.utils.clip_grad_norm_(learning, config.clip_norm)
            optimizer.step()
            losses.append(loss.item())
    return losses, network


def train_jaxsr(task: Any, config: Any) -> tuple[list[float], dict[str, Any]]:
    """The losses and weights of the same run by jaxsr."""
    metrics, weights = take_steps(task, config)
    return [step["network/loss"] for step in metrics], weights
