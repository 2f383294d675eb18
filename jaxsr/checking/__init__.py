"""Whether a torch module computes in JAX what it computes in torch, and what it costs.

Begin with `check_module.py`. `torch_runs` and `jax_runs` run the module; `measures` judges the
errors; `first_fault` names the first wrong submodule; the reports print the result.
"""
