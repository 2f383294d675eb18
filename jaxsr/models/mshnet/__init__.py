"""MSHNet: small targets in infrared images, by a U-shaped network with a head per resolution."""

from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import MSHNet

__all__ = [
    "MSHNet",
    "MSHNetConfig",
]
