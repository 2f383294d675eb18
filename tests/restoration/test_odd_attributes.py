"""Attributes that cannot be described: their networks are like no others, and nothing raises."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.restoration.network_digest import network_digest


class Base(nn.Module):
    """A network whose subclasses keep a size in different places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Holding(Base):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class RaisingItems(dict):
    def items(self):
        raise KeyError("on purpose")


class RaisingRepr(int):
    def __repr__(self) -> str:
        raise ValueError("on purpose")


class WithoutClass:
    @property
    def __class__(self):
        raise ValueError("on purpose")


class RaisingModule(type):
    __module__ = property(lambda kind: kind / 0)  # pyright: ignore


class OfRaising(metaclass=RaisingModule):
    pass


class Reduced:
    def __init__(self, reduced: object) -> None:
        self.reduced = reduced

    def __reduce_ex__(self, protocol):
        return self.reduced


class RaisingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *arguments, **options):
        raise RuntimeError("on purpose")


class RaisingExtras(Base):
    def extra_repr(self) -> str:
        raise ValueError("on purpose")

    def get_extra_state(self) -> object:
        raise ValueError("on purpose")


def nested_list(depth: int) -> list:
    made: list = []
    for _ in range(depth):
        made = [made]
    return made


def list_in_itself() -> list:
    made: list = [1]
    made.append(made)
    return made


ODD = {
    "datetime": lambda: np.array(["2020-01-01"], "datetime64[D]"),
    "of no axis": lambda: np.array(np.datetime64("2020")),
    "no bytes": lambda: np.zeros(3, "S0"),
    "empty": lambda: np.zeros((0, 3)),
    "bfloat16": lambda: np.asarray(jnp.ones(3, jnp.bfloat16)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "repeated array": lambda: np.broadcast_to(np.ones(1), (10**12,)),
    "repeated tensor": lambda: torch.ones(1).expand(10**12),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "subclass": lambda: torch.ones(3).as_subclass(RaisingTensor),
    "items": lambda: RaisingItems(a=1),
    "repr": lambda: RaisingRepr(3),
    "no class": lambda: [WithoutClass()],
    "no module": OfRaising,
    "class without module": lambda: OfRaising,
    "in itself": list_in_itself,
    "deep": lambda: nested_list(2000),
    **{
        f"reduced to {reduced}": functools.partial(Reduced, reduced)
        for reduced in (5, None, (), (1,), (list, 5, 6, 7, 8, 9), (list, (), 5))
    },
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_no_attribute_raises(name):
    assert network_digest(Holding(ODD[name]())) != network_digest(Holding(None))


def test_no_method_of_a_module_raises():
    assert network_digest(RaisingExtras()) != network_digest(RaisingExtras())


@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.broadcast_to(np.array([x]), (10**12,)),
        lambda x: torch.tensor([x]).expand(10**12),
        lambda x: np.array([x], "datetime64[D]"),
        lambda x: np.ma.masked_array(np.array([1, 2]), np.array([x, 0])),
    ],
)
def test_odd_arrays_have_content(make):
    digests = [network_digest(Holding(make(value))) for value in (0, 1, 1)]
    assert digests[0] != digests[1] == digests[2]
