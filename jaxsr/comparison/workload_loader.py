"""From a user's words to a workload: which network, which weights, which picture or prompt."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from jaxsr.comparison.workload import ImageWorkload, LanguageWorkload, Workload
from jaxsr.comparison.workload_options import WorkloadOptions
from jaxsr.errors import InputError, MissingFileError
from jaxsr.models.load import load_model
from jaxsr.models.registry import FAMILIES, LoadedModel


def load_workload(options: WorkloadOptions) -> Workload:
    """Loads the network and its inputs.

    Raises:
      FileNotFoundError, ValueError: see `jaxsr.models.load.load_model`; or the input is unusable.
    """
    loaded = load_model(
        options.model,
        weights=options.weights,
        options=options.class_options(),
        random_weights=True,
    )
    loaded.network.requires_grad_(False)
    model = loaded.name if options.model in FAMILIES else str(options.model)
    if loaded.kind == "language model":
        return _language(loaded, model, options)
    prepare = _detector_input if loaded.kind == "detector" else _restorer_input
    source = options.image or "a picture of jaxsr"
    how = "resized" if loaded.kind == "detector" else "middle"
    return ImageWorkload(
        family=loaded.family,
        model=model,
        network=loaded.network,
        inputs_text=f"{source}, {how} {options.size} px",
        image=prepare(loaded, options),
    )


def _restorer_input(loaded: LoadedModel, options: WorkloadOptions) -> np.ndarray:
    from jaxsr.restoration.models import restoration_model

    restorer = restoration_model(loaded)
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
        raise MissingFileError(f"no picture at {path}; give an image file")
    try:
        return decode_rgb(path)
    except UnreadablePicture as error:
        raise InputError(f"{path} cannot be read as a picture: {error}") from error


def _picture(options: WorkloadOptions) -> np.ndarray:
    """The middle of the picture, uint8 (size, size, 3)."""
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
        decode=decode,
    )
