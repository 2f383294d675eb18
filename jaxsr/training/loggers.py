"""Loggers of a run's figures: TensorBoard, Weights & Biases, MLflow, or your own.

Your own logger is a class with the methods of `Logger`, selected by `--logger my_logs:Print`:

    class Print:
        def start(self, folder, options, step):
            print(f"{folder} begins after step {step}")

        def figures(self, step, figures):
            print(step, figures)

        def image(self, step, name, image): ...

        def close(self): ...
"""

import functools
import importlib.util
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from jaxsr.errors import InputError, one_line
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.bounded_read import read_bounded
from jaxsr.models.build import import_attribute


class Logger(Protocol):
    """Receives the records of a run, on the first host only."""

    def start(self, folder: Path, options: Mapping[str, Any], step: int) -> None:
        """Begins, or continues after `step`: later figures of an earlier start are replaced.

        Args:
          folder: run folder.
          options: options of the run, as JSON values.
          step: the last completed step; 0 for a new run.
        """
        ...

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Records the figures of a step by name; `validation/…` are those of a validation."""
        ...

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """Records an image (H, W, 3), uint8."""
        ...

    def close(self) -> None:
        """Ends the records; the run has stopped or failed."""
        ...


class TensorBoard:
    """Events in a folder of the run."""

    folder: ClassVar = "tensorboard"

    def start(self, folder: Path, options: Mapping[str, Any], step: int) -> None:
        """Opens the events, and removes those of later steps."""
        from torch.utils.tensorboard import SummaryWriter

        del options
        _silence_event_threads()
        self._writer = SummaryWriter(str(folder / self.folder), purge_step=step + 1)

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes scalars."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """Writes an image."""
        self._writer.add_image(name, image, step, dataformats="HWC")

    def close(self) -> None:
        """Closes the events."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases, in the place that WANDB_MODE, WANDB_PROJECT and others set.

    The run is named after its folder. A resumed run continues the same one.
    """

    folder: ClassVar = "wandb"
    file: ClassVar = "wandb.json"

    def start(self, folder: Path, options: Mapping[str, Any], step: int) -> None:
        """Begins the run, or continues it."""
        import wandb  # pyright: ignore[reportMissingImports]

        known = _identity(folder / self.file) if step else None
        self._wandb = wandb
        self._run = wandb.init(
            dir=folder, name=folder.name, config=dict(options), id=known, resume="allow"
        )
        atomic_write(folder / self.file, json.dumps({"id": self._run.id}).encode())

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Logs figures."""
        self._run.log(dict(figures), step=step)

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """Logs an image."""
        self._run.log({name: self._wandb.Image(image)}, step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class MLflow:
    """A run of MLflow, in the place that MLFLOW_TRACKING_URI and others set."""

    file: ClassVar = "mlflow.json"

    def start(self, folder: Path, options: Mapping[str, Any], step: int) -> None:
        """Begins the run, or continues it."""
        import mlflow  # pyright: ignore[reportMissingImports]

        known = _identity(folder / self.file) if step else None
        self._mlflow = mlflow
        run = mlflow.start_run(run_id=known, run_name=folder.name)
        if known is None:
            mlflow.log_params({name: str(value)[:500] for name, value in options.items()})
        atomic_write(folder / self.file, json.dumps({"id": run.info.run_id}).encode())

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Logs metrics."""
        self._mlflow.log_metrics(dict(figures), step=step)

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """Logs an image."""
        self._mlflow.log_image(image, artifact_file=f"{name}/{step}.png")

    def close(self) -> None:
        """Ends the run."""
        self._mlflow.end_run()


LIBRARIES = {"wandb": WandB, "mlflow": MLflow}
"""Loggers that use a library, by its name."""
_INCLUDED = (TensorBoard, *LIBRARIES.values())
FOLDERS, FILES = (
    tuple(getattr(logger, kind) for logger in _INCLUDED if hasattr(logger, kind))
    for kind in ("folder", "file")
)
"""Names of what they write in the run's folder."""


def make_logger(name: str) -> Logger:
    """Makes the logger of a name: `wandb`, `mlflow` or `module:Class`.

    Raises:
      InputError: the library is not installed, or the class is not a logger.
    """
    if name in LIBRARIES:
        if importlib.util.find_spec(name) is None:
            raise InputError(f"--logger {name} needs the library; pip install {name}")
        return LIBRARIES[name]()
    kind = import_attribute(name, option="--logger")
    if absent := [n for n in ("start", "figures", "image", "close") if not hasattr(kind, n)]:
        raise InputError(
            f"--logger {name} has no method {absent[0]}; a logger has those of "
            "jaxsr.training.loggers.Logger"
        )
    try:
        return kind()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"--logger {name} cannot be made ({type(error).__name__}: {one_line(error)}); a logger "
            "takes no arguments"
        ) from error


def _identity(path: Path) -> str | None:
    """Reads the identity of the run at an earlier start; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        return str(json.loads(read_bounded(path))["id"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} does not name a run ({one_line(error)}); delete it to begin another"
        ) from error


@functools.cache
def _silence_event_threads() -> None:
    """Silences the tracebacks of TensorBoard's threads: the next call raises the same error."""
    previous = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not type(arguments.thread).__module__.startswith("tensorboard."):
            previous(arguments)

    threading.excepthook = hook
