"""From a user's words to a workload: which network, which weights, which image or prompt."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from jaxsr.comparison.workload import LanguageWorkload, SingleWorkload, Workload, first_array
from jaxsr.comparison.workload_options import WorkloadOptions
from jaxsr.errors import InputError, MissingFileError, one_line
from jaxsr.interop.host_arrays import to_numpy, to_torch
from jaxsr.interop.module_copy import copy_module
from jaxsr.models.build import is_class_name
from jaxsr.models.example_inputs import Example, example_inputs, parse_inputs
from jaxsr.models.load import load_model
from jaxsr.models.registry import FAMILIES, LoadedModel
from jaxsr.models.user_files import place_of
from jaxsr.runtime.options import ModelOptions


def load_workload(options: WorkloadOptions) -> Workload:
    """Loads the network and its inputs; a class without `weights` gets random ones.

    Raises:
      FileNotFoundError, ValueError: see `jaxsr.models.load.load_model`; or the input is unusable,
        or torch does not run the network on it.
    """
    untrained = has_random_weights(options)
    loaded = load_model(
        options.model, **options.loading(), random_weights=True, untrained=untrained
    )
    loaded.network.requires_grad_(False)
    model = loaded.name if options.model in FAMILIES else str(options.model)
    if loaded.kind == "language model":
        return _language(loaded, model, options)
    text, (args, kwargs) = _inputs(loaded, options)
    return SingleWorkload(
        family=loaded.family,
        model=model,
        network=loaded.network,
        inputs_text=text,
        inputs=(tuple(map(to_numpy, args)), {n: to_numpy(value) for n, value in kwargs.items()}),
    )


def has_random_weights(options: ModelOptions) -> bool:
    """Whether the user names a class or a library's network and no weights."""
    return options.weights is None and is_class_name(str(options.model))


def _inputs(loaded: LoadedModel, options: WorkloadOptions) -> tuple[str, Example]:
    """The network's inputs, in words and as arguments."""
    if options.input:
        example = parse_inputs(options.input)
        _run(loaded, example)
        return f"random {' '.join(options.input)}", example
    source = options.image or "an image of jaxsr"
    if loaded.kind == "detector":
        image = _detector_input(loaded, options)
        return f"{source}, resized {options.size} px", ((to_torch(image),), {})
    try:
        picture: Example = (to_torch(_restorer_input(loaded, options)),), {}
        _run(loaded, picture)
    except InputError as error:
        if options.image is not None or loaded.kind is not None:
            raise
        try:
            return "random, as its library says", example_inputs(loaded)
        except InputError:
            raise error from None
    return f"{source}, middle {options.size} px", picture


def _run(loaded: LoadedModel, example: Example) -> None:
    """Tries the network in torch.

    Raises:
      InputError: it fails, or returns no tensor.
    """
    args, kwargs = example
    try:
        with torch.no_grad():  # in a copy: some modules fill caches
            output = copy_module(loaded.network)(*args, **kwargs)
    except Exception as error:  # whatever a network raises
        shapes = ", ".join(str(tuple(t.shape)) for t in (*args, *kwargs.values()))
        raise InputError(
            f"{loaded.name} on {shapes} failed: {type(error).__name__}: {one_line(error)} "
            f"({place_of(error)}); give inputs that it takes, such as --input 1,3,64,64"
        ) from error
    first_array(output)


def _restorer_input(loaded: LoadedModel, options: WorkloadOptions) -> np.ndarray:
    from jaxsr.restoration.models import restoration_model

    first = next((m for m in loaded.network.modules() if isinstance(m, torch.nn.Conv2d)), None)
    known = loaded.channels or (first.in_channels if first is not None else None)
    try:
        restorer = restoration_model(loaded, channels=known)
    except InputError as error:
        if loaded.kind == "restorer":
            raise
        raise InputError(
            f"{loaded.name} takes no image of 1 or 3 channels; give its inputs, such as "
            "--input 2,4,64,64 or ids=int64:2,16:1000"
        ) from error
    image = _picture(options).astype(np.float32) / 255
    if restorer.channels == 1:
        image = image.mean(-1, keepdims=True, dtype=np.float32)
    low, high = restorer.value_range
    return np.ascontiguousarray((image * (high - low) + low).transpose(2, 0, 1)[None])


def _detector_input(loaded: LoadedModel, options: WorkloadOptions) -> np.ndarray:
    from jaxsr.data.input_form import InputForm
    from jaxsr.data.scenes import scene

    form = InputForm.from_description(loaded.metadata or {})
    form = replace(form, base=options.size, evaluate="base")
    picture = _decoded(options.image) if options.image else scene(1, 1, side=max(form.base, 32))[0]
    return form.prepare(picture)[None]


def _decoded(path: Path) -> np.ndarray:
    from jaxsr.data.decode import decode_rgb
    from jaxsr.data.picture_file import UnreadablePicture

    if not path.is_file():
        raise MissingFileError(f"no image at {path}; give the path of an image file")
    try:
        return decode_rgb(path)
    except UnreadablePicture as error:
        raise InputError(f"{path} cannot be read as an image: {error}") from error


def _picture(options: WorkloadOptions) -> np.ndarray:
    """The middle of the image, uint8 (size, size, 3)."""
    from jaxsr.data.photos import open_photos

    size = options.size
    if options.image is None:
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


def _language(loaded: LoadedModel, model: str, options: WorkloadOptions) -> Workload:
    decode, ids = None, list(options.prompt.encode())  # random weights: one token per byte
    if options.model not in FAMILIES:
        from jaxsr.models.llama.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(Path(model))
        decode = tokenizer.decode
        if options.raw or tokenizer.template is None:
            ids = tokenizer.encode(options.prompt)
        else:
            chat = tokenizer.chat([{"role": "user", "content": options.prompt}])
            ids = tokenizer.encode(chat, raw=False)
    return LanguageWorkload(
        family=loaded.family,
        model=model,
        network=loaded.network,
        inputs_text=repr(options.prompt),
        casts_buffers=False,
        prompt=tuple(ids),
        new_tokens=options.steps,
        rows=options.batch_size,
        decode=decode,
    )
