"""The results of a training run, for those who called it from Python."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsr.models.weight_files import exported_weights


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
