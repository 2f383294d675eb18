"""Resizing: weights by convention, and the kernels that apply them."""
