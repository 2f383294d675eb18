"""Calls of functions in Python, and of other libraries, from XLA's programs for CPUs.

`calls` registers functions that programs call, `rows` calls them for rows of a batch, on meshes
too, and `primitives` makes operations of JAX whose programs for CPUs are such calls.
"""
