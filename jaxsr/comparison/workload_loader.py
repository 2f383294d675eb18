"""From a user's words to a subject: which network, which weights, which picture or prompt.

A family's bare name gives a small network with random but fixed weights, so that engines can be
compared where no weights are at hand.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from jaxsr.comparison.workload import ImageSubject, LanguageSubject, Subject
from jaxsr.comparison.workload_options import FAMILIES, SubjectOptions
from jaxsr.errors import InputError, MissingFileError

_SEED = 20261121


def open_subject(options: SubjectOptions) -> Subject:
    """Finds the network, its weights and its inputs.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: the model is of no known family, or a file is refused.
    """
    name, path = options.model, Path(options.model)
    if name in FAMILIES:
        return _random(name, options)
    if path.suffix == ".gguf" or _is_language(path / "config.json"):
        return _language(path, options)
    if ":" not in name and not path.exists():
        raise MissingFileError(
            f"no model {name!r}: it is no file or folder here, and no family with random weights "
            f"({', '.join(FAMILIES)}); give one of these, a weights file, a model folder, or "
            "package.module:Class"
        )
    if path.suffix == ".safetensors" or (path / "network.safetensors").is_file():
        weights = path if path.is_file() else path / "network.safetensors"
        detector = _detector(weights, options)
        if detector is not None:
            return detector
    return _restorer(options)


def _is_language(path: Path) -> bool:
    # A run of `jaxsr.train` has a config.json as well.
    return path.is_file() and "model_type" in path.read_text(encoding="utf-8", errors="replace")


def _restorer(options: SubjectOptions) -> Subject:
    from jaxsr.restoration.models import find_model

    found = find_model(options.model, weights=options.weights)
    image = _picture(options).astype(np.float32) / 255
    if found.channels == 1:
        image = image.mean(-1, keepdims=True, dtype=np.float32)
    low, high = found.value_range
    return ImageSubject(
        family=_family(found.network),
        model=options.model,
        network=found.network.requires_grad_(False),
        inputs_said=_said(options),
        image=np.ascontiguousarray(_nchw(image * (high - low) + low)),
    )


def _family(network: nn.Module) -> str:
    return {"Generator": "fast-srgan", "Span": "span", "MSHNet": "mshnet"}.get(
        type(network).__name__, type(network).__name__
    )


def _detector(path: Path, options: SubjectOptions) -> Subject | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            names = {name.removeprefix("network.") for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file ({error})") from error
    if "conv_init.weight" not in names:
        return None
    from jaxsr.detection.detector import describe_file
    from jaxsr.models.mshnet.checkpoint import load_mshnet

    return _detecting(load_mshnet(path), describe_file(path), options)


def _detecting(network: nn.Module, described: dict[str, Any], options: SubjectOptions) -> Subject:
    from dataclasses import replace

    from jaxsr.detection.detector import InputForm

    form = replace(InputForm.from_description(described), base=options.size, evaluate="base")
    if options.image is None:
        from jaxsr.data.scenes import scene

        picture = scene(1, 1, side=max(options.size, 32))[0]
    else:
        picture = _decoded(options.image)
    return ImageSubject(
        family="mshnet",
        model=options.model,
        network=network.requires_grad_(False),
        inputs_said=_said(options).replace("middle", "resized"),
        image=form.prepare(picture)[None],
    )


def _decoded(path: Path) -> np.ndarray:
    from jaxsr.data.decode import UnreadablePicture, decode_rgb

    if not path.is_file():
        raise MissingFileError(f"no picture at {path}; give an image file")
    try:
        return decode_rgb(path)
    except UnreadablePicture as error:
        raise InputError(f"{path} cannot be read as a picture: {error}") from error


def _picture(options: SubjectOptions) -> np.ndarray:
    """The middle of the picture, uint8 (size, size, 3)."""
    size = options.size
    if options.image is None:
        from jaxsr.data.photos import open_photos

        picture = open_photos(None, crop=1, check="header").read(0)
    else:
        picture = _decoded(options.image)
    height, width = picture.shape[:2]
    if min(height, width) < size:
        raise InputError(
            f"{options.image} is {height}×{width} px, smaller than size={size}; give a smaller "
            "--size"
        )
    top, left = (height - size) // 2, (width - size) // 2
    return picture[top : top + size, left : left + size]


def _said(options: SubjectOptions) -> str:
    return f"{options.image or 'a picture of jaxsr'}, middle {options.size} px"


def _nchw(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None])


def _language(path: Path, options: SubjectOptions) -> Subject:
    from jaxsr.models.llama.loading import load_model
    from jaxsr.models.llama.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path)
    if options.raw or tokenizer.template is None:
        ids = tokenizer.encode(options.prompt)
    else:
        chat = tokenizer.chat([{"role": "user", "content": options.prompt}])
        ids = tokenizer.encode(chat, raw=False)
    model = load_model(path)
    return LanguageSubject(
        family=model.config.model_type,
        model=str(path),
        network=model.network,
        inputs_said=repr(options.prompt),
        casts_buffers=False,
        prompt=tuple(ids),
        new_tokens=options.steps,
        decode=tokenizer.decode,
    )


# ---- random weights


def _random(family: str, options: SubjectOptions) -> Subject:
    network = random_network(family)
    if family == "llama":
        # One token per byte: there is no tokenizer for weights that mean nothing.
        return LanguageSubject(
            family=family,
            model="random weights",
            network=network,
            inputs_said=repr(options.prompt),
            casts_buffers=False,
            prompt=tuple(options.prompt.encode()),
            new_tokens=options.steps,
        )
    if family == "mshnet":
        return _detecting(network, {}, options)
    image = _nchw(_picture(options).astype(np.float32) / 127.5 - 1)
    said = _said(options)
    return ImageSubject(
        family=family, model="random weights", network=network, inputs_said=said, image=image
    )


def random_network(family: str, *, build: Callable[[], nn.Module] | None = None) -> nn.Module:
    """A family's network with fixed random weights that hide no operation.

    Args:
      family: one of `FAMILIES`.
      build: makes the network. Default: a small one of the family, or MSHNet's only one.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = _built(family) if build is None else build()
        with torch.no_grad():
            for name, tensor in (*network.named_parameters(), *network.named_buffers()):
                _stir(name, tensor)
    return network.requires_grad_(False).eval()


def _built(family: str) -> nn.Module:
    if family == "fast-srgan":
        from jaxsr.models.fast_srgan.config import FastSRGANConfig
        from jaxsr.models.fast_srgan.generator import Generator

        return Generator(FastSRGANConfig(width=32, depth=4))
    if family == "span":
        from jaxsr.models.span.config import SpanConfig
        from jaxsr.models.span.generator import Span

        return Span(SpanConfig(width=24, depth=4, expansion=None))
    if family == "mshnet":
        from jaxsr.models.mshnet.network import MSHNet

        return MSHNet()
    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.llama.network import CausalLM

    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
    )
    return CausalLM(config)


def _stir(name: str, tensor: torch.Tensor) -> None:
    """Moves what starts at 0 or 1, or statistics and scales would do nothing."""
    if not tensor.is_floating_point() or name.endswith("inv_freq"):
        return
    if name.endswith("running_var"):
        tensor.uniform_(0.5, 1.5)
    elif name.endswith("running_mean"):
        tensor.normal_(0, 0.2)
    elif tensor.ndim < 2:
        tensor.add_(torch.randn_like(tensor) * 0.1)
    elif not tensor.count_nonzero():
        tensor.normal_(0, 0.05)
