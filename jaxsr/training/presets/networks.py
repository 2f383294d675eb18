"""Options of runs that train a user's network."""

from dataclasses import dataclass
from typing import Literal

from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.json_text import json_object


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Options of runs that train a user's network."""

    network: str | None = None
    """The network, required: package.module:Class or :function (modules in the current folder are
    found), timm:NAME, torchvision:NAME, smp:NAME, spandrel:ARCHITECTURE."""
    network_args: str = "{}"
    """Keyword arguments of the class or function, as a JSON object."""
    channels: Literal[1, 3] = 3
    """Channels of the network's images: 1 for luma (or gray), 3 for RGB."""
    check: bool = True
    """Before training, compare the network's outputs and gradients in JAX with torch's, on small
    images."""

    def describe(self, task: str) -> JsonObject:
        """Returns the builder of the network, for the metadata of its weights."""
        return {
            "task": task,
            "builder": self.network,
            "builder_args": json_object("network_args", self.network_args),
        }
