"""Which axis of a weight is split over `tensor`."""

import numpy as np
import pytest
from jax.sharding import PartitionSpec
from torch import nn

from jaxsr.errors import InputError
from jaxsr.interop.mesh import MeshShape, make_mesh, tree_shardings
from jaxsr.interop.sharding_rules import check_rules, planned_rules, tensor_axis

RULES = {"layers.*.up": "colwise", "layers.*.down": "rowwise", "layers.*.norm": "replicate"}


@pytest.mark.parametrize(
    ("name", "ndim", "axis"),
    [
        ("layers.3.up.weight", 2, 0),
        ("layers.3.up.bias", 1, 0),
        ("layers.3.down.weight", 2, 1),
        ("layers.3.down.bias", 1, None),
        ("layers.3.norm.weight", 1, None),
        ("layers.3.up", 3, 1),  # experts
        ("layers.3.down", 3, 2),
        ("layers.3.up.base.weight", 2, 0),
        ("layers.3.upper.weight", 2, None),
        ("head.weight", 2, None),
    ],
)
def test_axis(name, ndim, axis):
    assert tensor_axis(name, ndim, RULES) == axis


def test_optimiser_state_lies_as_its_parameters():
    mesh = make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
    weight = np.zeros((64, 96), np.float32)
    tree = {"params": {"layers.0.down.weight": weight}, "mu": ({"layers.0.down.weight": weight},)}
    shardings = tree_shardings(tree, mesh, RULES)
    expected = PartitionSpec("fsdp", "tensor")
    assert shardings["params"]["layers.0.down.weight"].spec == expected
    assert shardings["mu"][0]["layers.0.down.weight"].spec == expected


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"a": "columns"}, "the sharding rule 'a' is 'columns', not one of colwise, rowwise"),
        ({"z.*": "colwise"}, r"'z.\*' matches no parameter; there are a.weight"),
    ],
)
def test_rules_that_say_nothing(rules, message):
    with pytest.raises(InputError, match=message):
        check_rules(rules, ["a.weight"])


def test_plans_of_transformers():
    plan = {"a.q": "colwise", "a.o": "rowwise", "e": "embedding_rowwise"}
    plan |= {"h": "colwise_gather_output", "x": "moe_tp_experts", "tied": "colwise"}
    network = nn.Module()
    network.tp_plan = plan  # type: ignore[assignment]
    network.a, network.x = nn.Module(), nn.Linear(2, 2)
    network.a.q, network.a.o, network.e = nn.Linear(2, 2), nn.Linear(2, 2), nn.Embedding(2, 2)
    network.h = nn.Linear(2, 2)
    expected = {"a.q": "colwise", "a.o": "rowwise", "e": "colwise", "h": "colwise"}
    assert planned_rules(network) == expected
    assert planned_rules(nn.Linear(2, 2)) == {}
