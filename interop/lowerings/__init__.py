"""Who computes which aten operator: the JAX functions that stand in front of torchax."""
