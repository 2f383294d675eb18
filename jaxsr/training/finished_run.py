"""The results of a training run, for callers from Python."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsr.models.weight_files import exported_weights
from jaxsr.training.metrics_logger import read_figure


@dataclass(frozen=True)
class Run:
    """The results of a training run."""

    folder: Path
    """Folder with the weights, checkpoints, metrics and images; every command accepts it as a
    model."""
    finished: bool
    """Whether the run reached its last step; if not, a signal stopped it."""

    @property
    def weights(self) -> Path:
        """The weights of the last step; those of the best validation are in the same folder."""
        return exported_weights(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`: a dictionary for each step that was logged or validated."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [{n: read_figure(v) for n, v in json.loads(line).items()} for line in lines]

    @property
    def validation(self) -> dict[str, float]:
        """The figures of the last validation, by name; empty if the run did not validate."""
        prefix = "validation/"
        for record in reversed(self.metrics):
            if figures := {n.removeprefix(prefix): v for n, v in record.items() if prefix in n}:
                return figures
        return {}
