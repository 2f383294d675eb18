"""aten's operators, among them those that this release of torch does not have.

Releases add and remove operators. A module that registers something for one that is absent is
imported all the same: the operator is a name that nothing calls, and `explain` says so.
"""

from typing import Any

import torch

__all__ = ["AbsentOperator", "aten"]


class AbsentOperator:
    """Stands for an operator, or an overload of one, that this torch does not have."""

    def __init__(self, name: str) -> None:
        self.name = name
        """As torch would write it: `aten.cholesky.default`."""
        self.__name__ = name.rpartition(".")[2]

    def __getattr__(self, name: str) -> "AbsentOperator":
        if name.startswith("__"):
            raise AttributeError(name)
        return AbsentOperator(f"{self.name}.{name}")

    def overloads(self) -> list[str]:
        return []

    def __str__(self) -> str:
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"torch {torch.__version__} has no operator {self.name}")


class _Operators:
    def __getattr__(self, name: str) -> Any:
        operator = getattr(torch.ops.aten, name, None)
        if operator is None:
            operator = AbsentOperator(f"aten.{name}")
        setattr(self, name, operator)
        return operator


aten: Any = _Operators()
"""`torch.ops.aten`, with an `AbsentOperator` for each that it lacks."""
