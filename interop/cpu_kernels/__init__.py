"""oneDNN's and torch's CPU kernels inside compiled JAX programs.

On a CPU they train convolutions faster than XLA's. Programs lowered for CPUs call them
(`jaxsr.xla_calls`); programs for accelerators never contain such calls. `JAXSR_CPU_KERNELS=xla`
switches them off.

- `torch_calls`: functions of torch tensors as XLA custom calls.
- `operands`: of primitives with several of them.
- `onednn`: oneDNN's convolutions by its own interface, where it is installed.
- `convolution`: a convolution and both of its gradients.
- `attention`: scaled dot-product attention and its gradients.
- `panel_product`: products and attention of text generation, compiled by LLVM if installed.
- `channel_moments`: the sums over pixels in batch normalisation and its gradient.
- `stored`: an array that XLA does not make again.
- `choice`: which operations are computed so, by measurement.
"""
