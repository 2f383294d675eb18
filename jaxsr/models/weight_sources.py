"""Where weights for a network that is built otherwise come from: `--weights` and `--init`."""

from importlib import resources
from pathlib import Path

from jaxsr.errors import InputError, MissingFileError
from jaxsr.models.build import PRETRAINED, pretrained_weights
from jaxsr.models.hub import fetched
from jaxsr.models.weight_files import exported_weights

SHIPPED = {
    "clean": "restore_x4.safetensors",
    "photo": "restore_x4_photo.safetensors",
    "clean_x2": "restore_x2.safetensors",
    "photo_x2": "restore_x2_photo.safetensors",
    "targets": "detect_targets.safetensors",
}
"""Files in the package's `weights` folder, by the words that users give."""
_TRAINED_BY = {"targets": "mshnet"}
"""Task that trains weights like a word's; `span` for others."""


def weights_file(source: Path, *, network: str | None, option: str) -> Path:
    """The file that holds the weights that a user names.

    Args:
      source: a file, the folder of a run or of a repository, `ORG/NAME` and `hf:ORG/NAME:FILE` of
        the hub, a word of `SHIPPED`, or `pretrained`: weights from the library of `network`.
      network: the network's name, such as `timm:resnet18`.
      option: of the command line, for errors.

    Raises:
      FileNotFoundError: there is no such folder or repository.
      InputError: a folder holds several files, `pretrained` has no meaning for the network, or a
        word of `SHIPPED` is also the name of a file or folder.
    """
    name = str(source)
    if name == PRETRAINED and not source.exists():
        path = pretrained_weights(network or "not one of timm's", option=option)
    elif name in SHIPPED:
        check_unambiguous(source, option=option)
        path = shipped_weights(name)
    else:
        path = fetched(name)
    return exported_weights(path) if path.is_dir() else path


def check_unambiguous(word: Path, *, option: str) -> None:
    """Refuses a word for jaxsr's own weights or networks that is also a model's path.

    Args:
      word: as the user gives it. A folder of that name without weights, such as one of images, is
        not a model.
      option: of the command line, for the error.

    Raises:
      InputError: there is a file, or a folder with weights, of that name.
    """
    has_weights = (word / "config.json").exists() or any(word.glob("*.safetensors"))
    if word.is_file() or has_weights:
        raise InputError(
            f"{option} {word} names jaxsr's own weights, and {word.absolute()} here; give "
            "that path whole, or call it from another folder"
        )


def shipped_weights(word: str) -> Path:
    """The weights that come with jaxsr.

    Raises:
      FileNotFoundError: this installation has none.
    """
    path = Path(str(resources.files("jaxsr").joinpath("weights", SHIPPED[word])))
    if not path.is_file():
        raise MissingFileError(
            f"this installation has no weights {word!r} of jaxsr's own; train some with `python -m "
            f"jaxsr.train {_TRAINED_BY.get(word, 'span')} --out runs/mine` and give --model "
            "runs/mine, or name a weights file"
        )
    return path
