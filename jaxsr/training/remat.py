"""Chooses the blocks of a network that `--remat` recomputes in the backward pass."""

from collections.abc import Sequence

from torch import nn

from jaxsr.errors import InputError


def blocks_to_recompute(
    network: nn.Module, stated: Sequence[str], *, prefix: str, owner: str
) -> list[str]:
    """Returns the blocks that a task names, or else `remat_blocks`.

    Args:
      network: the network.
      stated: patterns of names in the network.
      prefix: the network's name in the objective.
      owner: owner of the network, for the error.

    Raises:
      InputError: there are no such blocks.
    """
    blocks = [f"{prefix}.{pattern}" for pattern in stated] or remat_blocks(network, prefix)
    if not blocks:
        raise InputError(
            f"remat finds no blocks in {owner}: it recomputes submodules that have submodules; "
            "leave --remat out, write the network as blocks, or set remat_blocks in the task"
        )
    return blocks


def remat_blocks(network: nn.Module, prefix: str) -> list[str]:
    """Returns the submodules that `remat` recomputes, outermost first and none inside another.

    They are the items of an `nn.Sequential` or `nn.ModuleList` that has two or more of one class
    with submodules of their own. If there is no such list, they are the network's children that
    have submodules.

    Args:
      network: the network.
      prefix: its name in the objective.
    """
    blocks: list[str] = []
    for name, module in network.named_modules():
        if any(name == block or name.startswith(block + ".") for block in blocks):
            continue
        if isinstance(module, (nn.Sequential, nn.ModuleList)):
            classes = [type(child) for child in module.children() if _has_children(child)]
            repeated = {kind for kind in classes if classes.count(kind) > 1}
            blocks += [
                f"{name}.{key}" if name else key
                for key, child in module.named_children()
                if type(child) in repeated
            ]
    children = [key for key, child in network.named_children() if _has_children(child)]
    return [f"{prefix}.{block}" for block in blocks or children]


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None
