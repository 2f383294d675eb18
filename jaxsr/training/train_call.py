"""`jaxsr.train`: a run of a task from Python. Heavy imports wait for the call."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxsr.training.task import Task


@dataclass(frozen=True)
class Run:
    """The results of a training run."""

    folder: Path
    """With the weights, checkpoints, metrics and pictures; every command takes it as a model."""
    finished: bool
    """Whether it reached its last step; otherwise a signal stopped it."""

    @property
    def weights(self) -> Path:
        """The weights of the last step; those of the best validation lie beside them."""
        from jaxsr.models.weight_files import exported_weights

        return exported_weights(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`: a dictionary for each step that was logged or validated."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def validation(self) -> dict[str, float]:
        """The figures of the last validation, by name; empty where there was none."""
        prefix = "validation/"
        for record in reversed(self.metrics):
            if figures := {n.removeprefix(prefix): v for n, v in record.items() if prefix in n}:
                return figures
        return {}


def train(task: "str | type[Task]", **options: Any) -> Run:
    """Trains a task, as `python -m jaxsr.train` does.

    Args:
      task: a subclass of `jaxsr.Task`, or what the command line calls one: `span`, `mshnet`,
        `my_file:Denoising`.
      **options: those of the command line with underscores: `steps=200`, `mesh=8`, `data="photos"`,
        `preset="quick"`, `resume=True`, `model={"width": 16}`.

    Returns:
      The run; its folder has all that it wrote.

    Raises:
      UserError: an option cannot be used, or the run cannot start or go on.
    """
    from jaxsr.errors import InputError
    from jaxsr.training.cli_options import parse_command_line
    from jaxsr.training.find_task import check_task
    from jaxsr.training.start import start

    name, kind = task if isinstance(task, str) else "", None
    if not name:
        kind = check_task(task, repr(task))
        name = f"{kind.__module__}:{kind.__qualname__}"
    name, kind, config = parse_command_line([name, *_words(options)], kind)
    if config.aot is not None:
        raise InputError(
            f"aot={config.aot} compiles instead of training; use python -m jaxsr.train {name} --aot"
        )
    return start(name, kind, config)


def _words(options: Mapping[str, Any], prefix: str = "--") -> list[str]:
    """The words of a command line that say the same."""
    words = []
    for name, value in options.items():
        option = prefix + name.replace("_", "-")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            words += _words(dataclasses.asdict(value), f"{option}.")
        elif isinstance(value, Mapping):
            words += _words(value, f"{option}.")
        elif isinstance(value, bool):
            words.append(option if value else prefix + f"no-{name}".replace("_", "-"))
        elif isinstance(value, tuple | list):
            words += [option, *map(str, value)]
        else:
            words.append(f"{option}={value}")
    return words
