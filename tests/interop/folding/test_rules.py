"""Which rule computes an operator on folded images."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import lowering, to_jax
from jaxsr.interop.folding import rules
from jaxsr.interop.folding.elementwise import pointwise
from jaxsr.interop.folding.policy import CHANNELS_LAST

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("registry_copy")


def test_rules():
    assert rules.rule_of(aten.convolution.default) is rules._convolution
    assert rules.rule_of(aten.relu.default) is pointwise
    assert rules.rule_of(aten.sort.default) is None


def test_a_users_lowering_goes_before_a_rule():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.PixelShuffle(2))
    model = to_jax(network, lane_folding=CHANNELS_LAST)
    x = jnp.ones((1, 3, 4, 4))
    before = model.apply(model.params, {}, x)[0]
    lowering(aten.pixel_shuffle.default)(
        lambda x, factor: jnp.full((1, 1, factor * x.shape[2], factor * x.shape[3]), 7.0)
    )
    assert rules.rule_of(aten.pixel_shuffle.default) is None
    after = model.apply(model.params, {}, x)[0]
    assert after.shape == before.shape
    np.testing.assert_array_equal(after, 7)
