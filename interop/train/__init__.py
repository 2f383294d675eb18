"""Training a converted module: the step, its optimisers, and the same step in plain PyTorch."""
