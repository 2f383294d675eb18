"""Options that commands share; each command's configuration inherits those that it has.

A configuration calls `super().__post_init__()` once, which runs the checks of all its bases.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.fields import check_fields
from jaxsr.interop.json_text import json_object
from jaxsr.interop.mesh_shape import MeshShape

Engine = Literal["jax", "torch"]
Platform = Literal["auto", "tpu", "cuda", "cpu"]
Dtype = Literal["float32", "bfloat16"]
Precision = Literal["default", "high", "highest"]
LaneFolding = Literal["auto", "on", "off"]


class CheckedOptions:
    """Base of options that check themselves when they are constructed."""

    def __post_init__(self) -> None:
        """Raises `InputError` for a value that cannot be used."""
        check_fields(self)
        _check_outputs(vars(self))


_OUTPUTS = ("out", "save_cache", "html", "aot_json")
"""Options that name a file to write, replacing an old one."""
_OF_MODELS = ("*.safetensors", "*.gguf", "*config.json", "tokenizer*", "*.index.json")
"""Files of a model's folder that outputs may not replace."""


class Mark(NamedTuple):
    """Bytes that jaxsr alone writes into files of a format, at their place there."""

    begin: bytes = b""
    """Regular expression of the first MiB, from the first byte on."""
    end: bytes = b""
    """The last bytes."""


_MARKS = {
    "save_cache": Mark(rb'.{8}\{"__metadata__":\{(.*?,)?"format":"\\"jaxsr-kv-cache-'),
    "html": Mark(rb'<!doctype html>\n<html[^>]*>\n<head>\n(<meta[^>]*>\n)*?'
                 rb'<meta name="generator" content="jaxsr">'),
    "aot_json": Mark(rb'\{\n  "programs": \[\n    \{\n      "name": [^\n]*\n      "topology": '),
}  # fmt: skip
"""Marks of files by the option that names them."""


def _check_outputs(options: Mapping[str, Any]) -> None:
    """Refuses an output that would replace an input of the command, or another output."""
    paths = [
        (name, os.path.realpath(text), text)
        for name, value in options.items()
        if name != "resume"  # a run may replace the cache that it started from
        for text in (value if isinstance(value, tuple) else (value,))
        if isinstance(text, str | Path) and "\0" not in str(text)
    ]
    for name, target, text in (path for path in paths if path[0] in _OUTPUTS):
        is_file = os.path.isfile(target)
        of_model = is_file and any(fnmatch(os.path.basename(target), p) for p in _OF_MODELS)
        for other, path, _ in paths:
            same = other != name and path == target and (is_file or other in _OUTPUTS)
            if same or (of_model and other not in _OUTPUTS and path == os.path.dirname(target)):
                raise InputError(
                    f"{name}={text} would replace a file of {other}; name another file"
                )
        if name in _MARKS:
            check_replaceable(name, Path(text), _MARKS[name])


def check_replaceable(option: str, path: Path, mark: Mark) -> None:
    """Refuses to replace a file that jaxsr did not write.

    Args:
      option: that names the file.
      path: of the file, which may be absent.
      mark: of the files that jaxsr writes there.

    Raises:
      InputError: there is a file without the mark.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(2**20)
        file.seek(max(path.stat().st_size - len(mark.end), 0))
        is_own = re.match(mark.begin, start, re.DOTALL) and file.read() == mark.end
    if start and not is_own:
        raise InputError(
            f"{option}={path} is a file that jaxsr did not write; name another, or remove it"
        )


@dataclass(frozen=True, kw_only=True)
class ModelOptions(CheckedOptions):
    """The model; every command has these options, and `jaxsr.models.load` reads them."""

    model_required: ClassVar[bool] = True
    """Whether the command has no model of its own."""

    model: str | None = None
    """Run folder of jaxsr.train, weights file (.safetensors, .pth, .ckpt, …), .gguf file, Hugging
    Face folder or ORG/NAME of its hub, package.module:Class, or a NAME after timm:, torchvision:,
    smp: or spandrel:."""
    weights: Path | None = None
    """Weights for a model that is named as package.module:Class or library:NAME: a file, a run
    folder, ORG/NAME of the Hugging Face hub, or pretrained for timm's weights of timm:NAME."""
    model_options: str = "{}"
    """Keyword arguments of the model's class, as a JSON object."""
    trust_builder: bool = False
    """Allow a run folder or weights file to run your class from a module outside its folder.
    Without it, such code runs only if the command line names it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None and self.weights is not None:
            raise InputError(
                f"weights belong to a class: --model package.module:Class --weights {self.weights};"
                f" a run folder or a file by itself is --model {self.weights}"
            )
        if self.model is None and self.model_required:
            raise InputError(
                "no model is named: give --model a run folder, a weights file or another of the "
                "names that --help lists"
            )
        self.class_options()

    def class_options(self) -> JsonObject:
        """Returns `model_options` as a dictionary."""
        return json_object("model_options", self.model_options)

    def loading(self) -> dict[str, Any]:
        """Returns the keyword arguments of `load_model` for these options."""
        names = {"weights": self.weights, "trust_builder": self.trust_builder}
        return {**names, "options": self.class_options()}


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(CheckedOptions):
    """Engine, devices and precision of the computation."""

    engine: Engine = "jax"
    """jax compiles programs and splits batches over a mesh; torch runs the same networks in plain
    PyTorch, on one device."""
    platform: Platform = "auto"
    """Where to compute; auto takes TPU, then CUDA, then CPU. The torch engine does not support
    TPUs."""
    mesh: str = "1"
    """Devices of the mesh, simulated on a CPU: a number, or axes such as data=4,fsdp=2. They split
    a batch; in generate, weights and cache."""
    dtype: Dtype = "float32"
    """Dtype that networks compute in; training keeps parameters, losses and updates in float32."""
    matmul_precision: Precision = "default"
    """JAX's precision of float32 products. default, in every command, is the device's fastest: CPUs
    compute in float32, TPUs round the inputs to bfloat16, GPUs to TF32. highest is float32 on all,
    up to six times slower on a TPU: use it to reproduce results of another platform."""
    compile_cache: Path | None = None
    """Folder of compiled programs. Default: jaxsr in the user's cache folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        devices = self.devices
        if self.engine == "torch" and devices > 1:
            raise InputError(
                f"the torch engine runs on one device, got mesh={self.mesh}; a mesh needs "
                "--engine jax"
            )
        if self.engine == "torch" and self.platform == "tpu":
            raise InputError(
                "the torch engine runs on cuda or cpu, got platform='tpu'; use --engine jax"
            )

    @property
    def mesh_shape(self) -> MeshShape:
        """Sizes of the mesh's axes."""
        return MeshShape.parse(self.mesh)

    @property
    def devices(self) -> int:
        """Number of devices of the whole mesh."""
        return self.mesh_shape.devices

    def check_batch(self, batch: int) -> None:
        """Raises `InputError` if a batch cannot be split over the mesh."""
        if batch < 1 or batch % self.devices:
            raise InputError(f"batch={batch} must be a positive multiple of mesh={self.mesh}")


@dataclass(frozen=True, kw_only=True)
class LaneFoldingOptions(CheckedOptions):
    """Options of commands with convolutional networks."""

    lane_folding: LaneFolding = "auto"
    """Fold columns of narrow images into a TPU's lanes: same values, less time and memory. auto:
    fold on TPUs, store images with channels last elsewhere. on: fold everywhere. off: never."""


@dataclass(frozen=True, kw_only=True)
class AotOptions(ComputeOptions):
    """Options of commands that can compile ahead of time instead of running."""

    aot: str | None = None
    """Compile for these devices, which need not be present, instead of running. TPUs by chip and
    grid (v5e:2x4, v6e:16x16), NVIDIA GPUs by name and count (h100:8; h100:2x8 on two hosts)."""
    aot_json: Path | None = None
    """With --aot, also write the report to this file."""
    aot_save: Path | None = None
    """With --aot, also keep the compiled programs in this folder: a compile cache for hosts with
    these devices."""
    aot_largest: bool = False
    """With --aot, also find the largest batch that fits; compiles several times."""

    def __post_init__(self) -> None:
        super().__post_init__()
        used = [n for n in ("aot_json", "aot_save", "aot_largest") if getattr(self, n)]
        if used and self.aot is None:
            raise InputError(f"{used[0]} needs aot, the devices to compile for: --aot v5e:2x4")
