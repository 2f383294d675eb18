# pyright: strict
"""The error that the torch-to-JAX conversion raises."""


class UnsupportedTorchError(NotImplementedError):
    """A torch feature that would not compute in JAX what it computes in torch.

    The message names the submodule, the operation and a workaround. It is raised while the module
    is converted or traced, never at run time of the compiled program.
    """
