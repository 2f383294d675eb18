"""How a torch module is traced on JAX arrays.

`functionalize` copies the module and runs it. Torch splits its functions into aten operators, which
`torch_modes` receives one by one and `dispatch` runs; `registry` says who computes each. `tensor`
is the torch tensor that carries a JAX array, `views` gives it torch's aliasing.
"""
