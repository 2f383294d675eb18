"""Photos that scikit-image and scikit-learn ship in their wheels, for runs without a folder."""

import importlib.util
from pathlib import Path

from jaxsr.errors import MissingFileError

BUILT_IN_TRAINING = (
    "skimage/data/astronaut.png",
    "skimage/data/coffee.png",
    "skimage/data/hubble_deep_field.jpg",
    "skimage/data/ihc.png",
    "skimage/data/motorcycle_left.png",
    "skimage/data/motorcycle_right.png",  # the same scene as the left one: never apart from it
    "skimage/data/retina.jpg",
    "skimage/data/rocket.jpg",
    "sklearn/datasets/images/flower.jpg",
)
"""Every colour photo of both wheels but the two below; 4.9 million pixels. Drawings, screenshots
and gray textures beside them are left out: they teach a colour model little about photos."""

BUILT_IN_VALIDATION = ("skimage/data/chelsea.png", "sklearn/datasets/images/china.jpg")
"""An animal's fur and a building's fine lines, neither of which has a sibling in the other list."""


def built_in_photos() -> dict[str, Path]:
    """The files by name, those for training and those for validation together."""
    paths = {}
    for name in sorted((*BUILT_IN_TRAINING, *BUILT_IN_VALIDATION)):
        package, _, inside = name.partition("/")
        spec = importlib.util.find_spec(package)  # finds the package without importing it
        if spec is None or not spec.submodule_search_locations:
            wheel = {"skimage": "scikit-image", "sklearn": "scikit-learn"}[package]
            raise MissingFileError(
                f"the built-in photos come with {wheel}, which is not installed; "
                f"install it or give --data FOLDER"
            )
        paths[name] = Path(next(iter(spec.submodule_search_locations))) / inside
    return paths
