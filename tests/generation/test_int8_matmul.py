"""Layers with integer products against float64, in torch and under JAX."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.models.llama.int8_matmul import (
    DigitLinear,
    IntegerW8A8Linear,
    integer_digits,
    multiply_integers,
)
from jaxsr.models.llama.quantized import ScaledLinear, W8A8Linear, quantize_int8

# A largest value whose quotient by its scale rounds to beyond three digits is among them.
X = torch.randn(3, 5, 1280, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def plain():
    torch.manual_seed(0)
    return quantize_int8(nn.Linear(1280, 96).requires_grad_(False))


def swapped(*layers, weight_only):
    network = nn.Sequential(*layers)
    multiply_integers(network, weight_only=weight_only)
    return network


def test_digits_are_the_number():
    x = torch.cat((X.flatten(0, 1), 1e-20 * X[0], 1e20 * X[0], torch.zeros(1, 1280)))
    digits, scale = integer_digits(x)
    assert (digits.dtype, digits.shape) == (torch.int8, (3, 26, 1280))
    places = torch.tensor([65536.0, 256.0, 1.0], dtype=torch.float64)
    value = (digits.double() * places[:, None, None]).sum(0) * scale
    # Half a unit of 24 bits, and the rounding of the scale and of the quotient: three halves.
    reach = x.abs().amax(1, keepdim=True)
    assert ((value - x).abs() <= 1.5 * 2**-23 * reach).all()


def test_weight_only_is_as_exact_as_float32(plain):
    layer = swapped(plain, weight_only=True)[0]
    assert type(layer) is DigitLinear
    want = F.linear(X.double(), plain.dequantized().double()) + plain.bias
    error, of_floats = ((f(X) - want).abs().max() for f in (layer, plain))
    assert error < 2e-6  # outputs about 1; float32 products, summed in order, do as well
    assert error < 3 * of_floats
    one = layer(X[1:2, 2:3])
    assert (one == layer(X)[1, 2]).all()  # to the bit, whatever is beside it


def test_what_is_not_finite_stays_so(plain):
    layer = swapped(plain, weight_only=True)[0]
    for value in (float("nan"), float("inf")):
        x = X[0].clone()
        x[1, 7] = value
        got = layer(x)
        assert not got[1].isfinite().any()
        assert got[[0, 2, 3, 4]].isfinite().all()


def test_w8a8_is_the_same_to_rounding(plain):
    layer = W8A8Linear(plain.weight, plain.weight_scale, bias=plain.bias)
    whole = swapped(layer, weight_only=False)[0]
    assert type(whole) is IntegerW8A8Linear
    torch.testing.assert_close(whole(X), layer(X), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("tokens", [1, 2, 15])
@pytest.mark.parametrize("kind", [DigitLinear, IntegerW8A8Linear])
def test_jax_multiplies_the_same_integers(kind, tokens, plain):
    import jax

    from jaxsr.generation import jax_network
    from jaxsr.interop import lowering, to_jax

    lowering(torch.ops.aten._int_mm.default)(jax_network._integer_product)
    layer = kind(plain.weight, plain.weight_scale, bias=plain.bias).eval()
    x = X.flatten(0, 1)[:tokens]
    model = to_jax(layer)
    compiled = jax.jit(model.apply).lower(model.params, model.buffers, x.numpy()).compile()
    assert "s8[" in str(compiled.as_text())
    got, _ = compiled(model.params, model.buffers, x.numpy())
    error = np.abs(got - layer(x).numpy())
    if kind is DigitLinear:
        np.testing.assert_array_less(error, 2e-6)
    else:  # see test_quantized: a value halfway between two levels
        assert np.median(error.max(-1)) < 2e-5


def test_blocks_floats_and_weight_only_stay_where_asked(plain):
    block = ScaledLinear(plain.weight, torch.ones(3, 10), block=(32, 128))
    fp8 = ScaledLinear(torch.zeros(4, 8).to(torch.float8_e4m3fn), torch.ones(4, 1))
    kept = swapped(block, fp8, weight_only=True)
    assert [type(layer) for layer in kept] == [ScaledLinear, ScaledLinear]
    assert type(swapped(plain, weight_only=False)[0]) is ScaledLinear
