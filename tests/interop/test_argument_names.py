"""Arguments of forward that are named as those of `apply`."""

import functools

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.interop.errors import InputError


class Named(nn.Module):
    """A forward whose arguments are named as those of `apply`."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, train=False, rng=0, method="add", params=1.0):
        x = x + 100 if self.training else x
        x = x * 2 if train else x
        return x + params + rng if method == "add" else x - params


def test_arguments_named_as_those_of_apply():
    model, x = to_jax(Named()), np.array([1, 2], np.float32)
    module, tensor = Named().eval(), torch.tensor([1.0, 2.0])
    apply = functools.partial(model.apply, {}, {})
    np.testing.assert_array_equal(apply(x)[0], module(tensor))
    np.testing.assert_array_equal(apply(x, True, train=False)[0], module(tensor, True))
    np.testing.assert_array_equal(apply(x, params=3.0)[0], module(tensor, params=3.0))
    for named in ({"train": True}, {"train": False}, {"rng": jax.random.key(0)}):
        with pytest.raises(InputError, match=f"{next(iter(named))}= may be an argument of forward"):
            apply(x, **named)
    named = {"train": True, "method": "subtract", "rng": 3}
    got = model.call({}, {}, (x,), named, train=True)[0]
    np.testing.assert_array_equal(got, module.train()(tensor, **named))
