"""torch's two modes, each with one method to override that takes plain arguments."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Options = dict[str, Any]


class FunctionMode(TorchFunctionMode):
    """Hands every torch function that Python code calls to `call`."""

    def call(self, func: Callable, args: tuple, kwargs: Options) -> Any:
        """Runs it, without the mode; `kwargs` may be changed."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Callable, types: Sequence, args: tuple = (), kwargs: Options | None = None
    ) -> Any:
        return self.call(func, args, dict(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    """Hands every aten operator to `call`."""

    def call(self, func: Any, args: tuple, kwargs: Options) -> Any:
        """Runs it, without the mode; `kwargs` may be changed."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Sequence, args: tuple = (), kwargs: Options | None = None
    ) -> Any:
        return self.call(func, args, dict(kwargs or {}))
