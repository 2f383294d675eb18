"""PyTorch vision and language code, run natively on JAX.

Importing this package touches no device and changes no global state; `jaxsr.interop` turns torch
modules into pure JAX functions, `jaxsr.ops` holds the image kernels.
"""

__version__ = "0.1.0"
