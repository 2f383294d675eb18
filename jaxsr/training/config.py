"""The options of a training run that every family shares, checked at construction."""

import dataclasses
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional, Self, TypeVar

from jaxsr.errors import InputError
from jaxsr.interop.fields import number, whole_number
from jaxsr.interop.train.options import OptimizerConfig, StepConfig
from jaxsr.runtime.options import AotOptions, CheckedOptions, LaneFoldingOptions

Part = TypeVar("Part", StepConfig, OptimizerConfig)


@dataclass(frozen=True, kw_only=True)
class RunConfig(LaneFoldingOptions, AotOptions, StepConfig, OptimizerConfig):
    """Options of every training run; a family adds its own."""

    compile: bool = False
    """With the torch engine: run the networks through torch.compile."""

    data: Path | None = None
    """Folder to train on. Default: the task's included photos, or scenes that it draws."""
    val: Path | None = None
    """Folder to validate on. Default: part of the data is held out."""
    steps: int | None = number(None, least=1, most=2**31 - 1)
    """Optimiser steps of the whole run. Give either steps or epochs."""
    epochs: float | None = number(None, above=0, most=1e6)
    """Passes over the data. Give either steps or epochs."""
    batch: int = number(least=1, most=2**20)
    """Samples per step, over the whole mesh and all hosts."""
    remat: bool = False
    """Recompute activations in the backward pass instead of keeping them."""

    lr_batch: int | None = number(None, least=1, most=2**31 - 1)
    """Batch size that --lr is meant for: the rate is scaled by --batch / --lr-batch. Default: not
    scaled."""
    init: Path | None = None
    """Weights to start from: a safetensors file, a file of torch.save, a run folder, ORG/NAME or
    hf:ORG/NAME:FILE of the Hugging Face hub, jaxsr's own (clean, photo, clean_x2, photo_x2,
    targets), or pretrained for timm's weights of timm:NAME. Tensors whose name and shape match are
    loaded; the others are listed."""
    freeze: tuple[str, ...] = ()
    """Patterns (encoder.*) of parameters of the exported network to keep fixed. A BatchNorm whose
    statistics match (encoder.bn.running_mean) keeps them fixed and normalises with them."""
    lr_factor: tuple[str, ...] = ()
    """PATTERN=FACTOR (head.*=10): multiplies the learning rate of matching parameters of the
    exported network. The first pattern that matches counts."""
    seed: int = number(0, least=0, most=2**32 - 1)
    """Seed for initial weights, data order and all randomness in the step."""
    deterministic: bool = False
    """On GPUs, use only kernels that give the same bits in every run; some are slower. On CPUs and
    TPUs the jax engine always does."""
    out: Path | None = None
    """Run folder. Default: runs/FAMILY-DATE-TIME."""
    resume: bool = False
    """Continue from the newest sound checkpoint in --out, or in the newest run, with that run's
    options. Some may be changed."""
    branch_from: Path | None = None
    """Run folder to branch from: starts a new run from its newest checkpoint (weights, optimiser
    state and step), with its options, all of which may be changed."""
    log_every: int = number(20, least=1)
    """Steps between lines of metrics."""
    validate_every: int | None = number(None, least=1)
    """Steps between validations. Default: a tenth of the run."""
    save_every: int | None = number(None, least=1)
    """Steps between checkpoints, in addition to those at validations. Default: no others."""
    tensorboard: bool = True
    """Write TensorBoard events to out/tensorboard."""
    logger: tuple[str, ...] = ()
    """Also log to wandb or mlflow, or to your own class, module:Class."""
    profile: str | None = None
    """START:STOP: steps to record with the profiler, into out/profile."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # `steps: int = 6` of a task: it is None in a run whose length is given in epochs.
        stated = inspect.get_annotations(cls)
        lengths = {n: Optional[stated[n]] for n in ("steps", "epochs") if n in stated}  # noqa: UP045
        cls.__annotations__ = stated | lengths

    def __post_init__(self) -> None:
        for part in (AotOptions, StepConfig, OptimizerConfig):
            part.__post_init__(self)
        shape = self.mesh_shape
        if (self.steps is None) == (self.epochs is None):
            raise InputError(
                f"the run's length must be given as steps or as epochs, got steps={self.steps} and "
                f"epochs={self.epochs}"
            )
        parts = shape.row_devices
        if self.batch % parts:
            raise InputError(
                f"batch={self.batch} cannot be split over mesh={self.mesh} ({parts} "
                f"devices); use a multiple of {parts}"
            )
        rows = self.batch // parts
        if rows % self.accumulate:
            raise InputError(
                f"the {rows} rows that batch={self.batch} gives each of {parts} devices "
                f"cannot be cut into accumulate={self.accumulate} slices; use a divisor of {rows}"
            )
        if self.compile and self.engine != "torch":
            raise InputError("compile=True is for engine=torch; the jax engine always compiles")
        _ = self.profile_window  # Constructing a StepConfig checks it.
        self.step_config.check_fits(dataclasses.asdict(shape))

    def in_steps(self, samples: int) -> Self:
        """Returns the configuration with its length in steps, for epochs of `samples` samples."""
        if self.epochs is None:
            return self
        steps = max(round(self.epochs * samples / self.batch), 1)
        return dataclasses.replace(self, steps=steps, epochs=None)

    @property
    def total_steps(self) -> int:
        """The run's length in steps, where it is known already.

        Raises:
          ValueError: the length is given in epochs.
        """
        if self.steps is None:
            raise InputError(
                f"cannot convert epochs={self.epochs} to steps before the data set's size is known"
            )
        return self.steps

    @property
    def profile_window(self) -> tuple[int, int] | None:
        """First step to record, and the step to stop before."""
        if self.profile is None:
            return None
        start, stop = (whole_number(part) for part in self.profile.partition(":")[::2])
        if start is None or stop is None or start >= stop:
            raise InputError(
                f"profile must be START:STOP, two step numbers in order, got {self.profile!r}"
            )
        if self.steps is not None and start >= self.steps:
            raise InputError(
                f"profile={self.profile} starts beyond the run's steps={self.steps}, counted from 0"
            )
        return start, stop

    @property
    def step_config(self) -> StepConfig:
        return self._part(StepConfig)

    @property
    def optimizer_config(self) -> OptimizerConfig:
        """Options of every network's optimiser, with the learning rate scaled by `lr_batch`."""
        scale = self.batch / self.lr_batch if self.lr_batch else 1.0
        return dataclasses.replace(self._part(OptimizerConfig), lr=self.lr * scale)

    def _part(self, kind: type[Part]) -> Part:
        names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        return kind(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class CacheOptions(CheckedOptions):
    """Options for data that may stay in memory."""

    cache_gb: float | None = number(None, least=0, most=1e6)
    """Host memory for decoded data in GiB. Default: a quarter of the free memory."""
    scratch: Path | None = None
    """Folder for decoded data beyond --cache-gb. Default: decode it again each time."""
    resident_gb: float = number(1.0, least=0, most=1e6)
    """Device memory for decoded data in GiB; a data set that fits is copied there once."""

    @property
    def cache_bytes(self) -> int | None:
        """`cache_gb` in bytes."""
        return None if self.cache_gb is None else int(self.cache_gb * 2**30)


@dataclass(frozen=True, kw_only=True)
class PictureRunConfig(CacheOptions, RunConfig):
    """Options of runs on image files."""

    on_bad_file: Literal["error", "skip"] = "error"
    """For files that are unreadable or too small: stop before training (error), or leave them out
    (skip)."""
