"""Linear layers whose weight a family's code reads by itself, past the layer.

Mamba multiplies `self.dt_proj.weight`, others ask for a weight's dtype. Such a layer must stay an
`nn.Linear`: a quantised one computes the product, but its `weight` holds levels.
"""

from typing import Any

import torch
from torch import Tensor, nn

from jaxsr.models.thread_patch import patched


def directly_read(network: nn.Module) -> frozenset[str]:
    """Names of these layers; empty if the code cannot run without values.

    Args:
      network: of `jaxsr.models.hugging_face.network`, on the meta device. In bfloat16: grouped
        products take nothing else there.
    """
    read: set[int] = set()
    inside: list[int] = []
    forward, get = nn.Linear.forward, nn.Module.__getattr__

    def called(self: nn.Linear, x: Tensor) -> Tensor:
        inside.append(id(self))
        try:
            return forward(self, x)
        finally:
            inside.pop()

    def got(self: nn.Linear, name: str) -> Any:
        if name == "weight" and id(self) not in inside:
            read.add(id(self))
        return get(self, name)

    tokens = torch.zeros((1, 2), dtype=torch.int64, device="meta")
    with (
        patched(nn.Linear, forward=called, __getattr__=got),
        # Where code is compiled, transformers looks at no mask's values.
        patched(torch.compiler, is_compiling=lambda: True),
        torch.no_grad(),
    ):
        try:
            network(tokens)
        except (RuntimeError, NotImplementedError):
            # The result's shape depends on values: JAX does not trace such a network either.
            return frozenset()
    # Subclasses read their weight in a forward of their own.
    plain = {n: m for n, m in network.named_modules() if type(m) is nn.Linear}
    return frozenset(name for name, module in plain.items() if id(module) in read)
