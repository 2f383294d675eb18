"""Who computes which aten operator: JAX functions, before torch's decompositions and torchax's.

One file per subject, each imported by itself before the first trace. A function registers with a
decorator of `_core/registry.py`:

- `@lowers(aten.NAME.OVERLOAD)`: a function of JAX arrays. Nearly all are this.
- `@handles(...)`: for operators that are not pure functions, such as random numbers and running
  statistics.
- `@decomposes(...)`: a function of tensors that calls other torch operators.
- `@overrides(function)`: instead of a torch function, before torch splits it into operators.
- tables of `refused.py`: refused operators, with a workaround.

Shapes, strides and dtypes come from torch's meta device, and every result is checked against them.
"""
