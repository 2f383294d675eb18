"""SPAN: an efficient super-resolution network that can be tiled exactly."""
