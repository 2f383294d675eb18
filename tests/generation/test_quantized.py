"""Quantised layers against their dequantised weights, in torch and under JAX."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.models.llama.quantized import (
    Float8Activations,
    LevelsLinear,
    ScaledLinear,
    W8A8Linear,
    quantize,
    quantize_int4,
    quantize_int8,
    quantize_tokens,
)

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 5, 1280, generator=GENERATOR)


def dense(bias=True):
    torch.manual_seed(1)
    return nn.Linear(1280, 96, bias=bias).requires_grad_(False)


def fp8_block():
    scale = torch.rand(3, 10, generator=torch.Generator().manual_seed(2)) + 0.5
    return ScaledLinear(dense().weight.to(torch.float8_e4m3fn), scale, block=(40, 128))


def fp8_channel():
    scale = torch.rand(96, 1, generator=torch.Generator().manual_seed(2)) + 0.5
    return ScaledLinear(dense().weight.to(torch.float8_e4m3fn), scale, bias=dense().bias)


LAYERS = {
    "int8": lambda: quantize_int8(dense()),
    "int4": lambda: quantize_int4(dense()),
    "int4 group 128": lambda: quantize_int4(dense(bias=False), group=128),
    "fp8 block, last row cut": fp8_block,
    "fp8 channel": fp8_channel,
    "fp8 tensor": lambda: ScaledLinear(
        dense().weight.to(torch.float8_e5m2), torch.tensor(0.7), bias=dense().bias
    ),
}


@pytest.mark.parametrize("group", [None, 128])
def test_float8_activations_are_the_same_under_jax(group):
    import jax

    from jaxsr.interop import to_jax

    activations = Float8Activations(group=group)
    layer = ScaledLinear(fp8_channel().weight, torch.ones(96, 1), activations=activations).eval()
    model = to_jax(layer)
    got, _ = jax.jit(model.apply)(model.params, model.buffers, X.numpy())
    error = np.abs(got - layer(X).detach().numpy())
    # XLA divides by a constant through its reciprocal: a value halfway between two levels may take
    # the other one, which moves a token's outputs by a level times a weight.
    assert np.median(error) < 3e-5 and error.max() < 0.3 * 0.04
    assert torch.equal(activations.round(torch.zeros(2, 256)), torch.zeros(2, 256))


@pytest.mark.parametrize("name", LAYERS)
def test_layer_computes_with_its_dequantised_weight(name):
    layer = LAYERS[name]()
    want = F.linear(X.double(), layer.dequantized().double())
    want = want if layer.bias is None else want + layer.bias
    # 1280 float32 products of values about 1 and 0.02
    torch.testing.assert_close(layer(X).double(), want, atol=2e-5, rtol=1e-5)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [*LAYERS, "w8a8"])
def test_layer_is_the_same_under_jax(name):
    import jax

    from jaxsr.interop import to_jax

    layer = LAYERS[name]() if name in LAYERS else w8a8()
    model = to_jax(layer.eval())
    stored = layer.levels if isinstance(layer, LevelsLinear) else layer.weight
    placed = model.buffers["levels" if isinstance(layer, LevelsLinear) else "weight"]
    assert placed.dtype.itemsize == stored.element_size() == 1  # quantised in memory there, too
    got, _ = jax.jit(model.apply)(model.params, model.buffers, X.numpy())
    error = np.abs(got - layer(X).numpy())
    if name == "w8a8":
        # XLA divides by a constant through its reciprocal, so a value halfway between two levels
        # may take the other one: a few tokens may be off by a level times a weight.
        assert error.max() < 0.03 * 0.04
        assert np.median(error.max(-1)) < 2e-5
    else:
        np.testing.assert_array_less(error, 3e-5)  # 1280 products; outputs are about 1


def w8a8():
    layer = quantize_int8(dense())
    return W8A8Linear(layer.weight, layer.weight_scale, bias=layer.bias)


def test_w8a8_sums_integers_exactly():
    layer = w8a8()
    levels, scale = quantize_tokens(X)
    whole = levels.long() @ layer.weight.long().T  # torch's own integer arithmetic
    want = whole.double() * scale.double() * layer.weight_scale[:, 0].double()
    want = want + dense().bias.double()
    # Exact sums below 2²⁴ per run; what is left is float32 scaling.
    torch.testing.assert_close(layer(X).double(), want, atol=1e-6, rtol=1e-6)


def test_activation_scale_is_that_of_compressed_tensors():
    absent = "compressed-tensors is absent; pip install --no-deps compressed-tensors"
    scheme = pytest.importorskip("compressed_tensors.quantization", reason=absent)
    args = scheme.QuantizationArgs(num_bits=8, symmetric=True, strategy="token", dynamic=True)
    low, high = X.amin(-1, keepdim=True), X.amax(-1, keepdim=True)
    want, _ = scheme.utils.calculate_qparams(low, high, args)
    torch.testing.assert_close(quantize_tokens(X)[1], want)


@pytest.mark.parametrize(("make", "step"), [(quantize_int8, 127), (quantize_int4, 7)])
def test_rounding_is_within_half_a_step(make, step):
    linear = dense()
    layer = make(linear)
    weight = linear.weight
    group = getattr(layer, "group", weight.shape[1])
    reach = weight.view(96, -1, group).abs().amax(-1, keepdim=True) / step
    error = (layer.dequantized() - weight).view(96, -1, group).abs()
    assert (error <= reach * 0.5001).all()


def test_zero_rows_and_zero_tokens_stay_zero():
    linear = dense(bias=False)
    linear.weight[3] = 0
    for make in (quantize_int8, quantize_int4):
        assert (make(linear)(X)[..., 3] == 0).all()
    assert (w8a8()(torch.zeros(2, 1280)) == dense().bias).all()


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_network_is_swapped_but_for_embedding_and_head(scheme, network):
    import copy

    model = quantize(copy.deepcopy(network("qwen3")), scheme)
    dense_left = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert dense_left == ["lm_head"]
    with pytest.raises(ValueError, match="quantised already"):
        quantize(model, scheme)


def test_shapes_that_do_not_fit_are_refused():
    weight = dense().weight.to(torch.int8)
    with pytest.raises(ValueError, match="needs one scale or 96"):
        ScaledLinear(weight, torch.ones(95, 1))
    with pytest.raises(ValueError, match=r"needs scales \(3, 10\)"):
        ScaledLinear(weight, torch.ones(2, 10), block=(40, 128))
    with pytest.raises(ValueError, match="groups of 96"):
        quantize_int4(dense(), group=96)
