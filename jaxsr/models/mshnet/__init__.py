"""MSHNet: small targets in infrared images, by a U-shaped network with a head per resolution."""
