"""Torch's own CPU kernels inside compiled JAX programs, through XLA's foreign function interface.

On a CPU torch's convolutions (oneDNN) are two to three times as fast as XLA's. They are called
without a copy of their inputs and without a compiler on the user's machine:

- `ffi`: Python functions as XLA custom calls; the C structures of XLA's interface.
- `convolution`: the kernels of a convolution and of its gradients.

Programs for accelerators never contain such calls: the choice is made while a program is lowered
for a platform. `JAXSR_CPU_KERNELS=xla` switches them off.
"""
