"""Where torch's functions are that no dispatch mode shows, and how they are replaced for a while.

Torch's modules look these names up at each call. So a replacement reaches code that has imported
the public function (`torch.cond`, `torch.vmap`, …) before.
"""

import importlib
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

_FLEX = "torch.nn.attention.flex_attention"
ENTRY_POINTS = {
    "vmap": ("torch._functorch.apis", "vmap_impl"),
    "grad_and_value": ("torch._functorch.eager_transforms", "grad_and_value_impl"),
    "vjp": ("torch._functorch.eager_transforms", "_vjp_with_argnums"),
    "jvp": ("torch._functorch.eager_transforms", "_jvp_with_argnums"),
    "associative_scan": ("torch._higher_order_ops.associative_scan", "associative_scan"),
    "cond": ("torch._higher_order_ops.cond", "cond_op"),
    "while_loop": ("torch._higher_order_ops.while_loop", "while_loop_op"),
    "scan": ("torch._higher_order_ops.scan", "scan_op"),
    "map": ("torch._higher_order_ops.map", "map_impl"),
    "flex_attention": (_FLEX, "flex_attention_hop"),
    "flex_attention's device": (_FLEX, "_validate_device"),
    "flex_attention without compiling": (_FLEX, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"),
    "checks of values": ("torch", "_check_tensor_all_with"),
    "inputs of functional": ("torch.autograd.functional", "_grad_preprocess"),
    "torch's generator": ("torch.random", "default_generator"),
    "torch's generator by name": ("torch", "default_generator"),
}
"""By caller: the module, and the name in it."""

ANY_FLEX_ATTENTION = {
    "flex_attention's device": lambda *_: None,
    "flex_attention without compiling": True,
}
"""It refuses gradients on CPUs, and insists on a compiled frame."""


def entry_point(name: str) -> Any:
    """The function at this name now."""
    module, attribute = ENTRY_POINTS[name]
    return getattr(importlib.import_module(module), attribute)


@contextmanager
def replaced(values: Mapping[str, Any]) -> Generator[None]:
    """Puts values in the places of `ENTRY_POINTS`, and back."""
    with ExitStack() as stack:
        for name, value in values.items():
            module, attribute = ENTRY_POINTS[name]
            owner = importlib.import_module(module)
            stack.callback(setattr, owner, attribute, getattr(owner, attribute))
            setattr(owner, attribute, value)
        yield
