"""Where weights for a network that is built otherwise come from: `--weights` and `--init`."""

from pathlib import Path

from jaxsr.models.build import PRETRAINED, pretrained_weights
from jaxsr.models.hub import fetched
from jaxsr.models.weight_files import exported_weights


def weights_file(source: Path, *, network: str | None, option: str) -> Path:
    """The file that holds the weights that a user names.

    Args:
      source: a file, the folder of a run or of a repository, `ORG/NAME` and `hf:ORG/NAME:FILE` of
        the hub, or `pretrained`: weights from the library of `network`.
      network: the network's name, such as `timm:resnet18`.
      option: of the command line, for errors.

    Raises:
      FileNotFoundError: there is no such folder or repository.
      InputError: a folder holds several files, or `pretrained` has no meaning for the network.
    """
    if str(source) == PRETRAINED and not source.exists():
        path = pretrained_weights(network or "not one of timm's", option=option)
    else:
        path = fetched(str(source))
    return exported_weights(path) if path.is_dir() else path
