"""An infinity or a NaN among the inputs reaches what torch lets it reach, and nothing else."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxsr.interop import to_jax

PLACES = [(0, 0), (0, 3), (4, 3), (8, 6), (5, 0)]
"""Corners, edges and the middle of 9 × 7; one in each of five images."""


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def images():
    x = np.random.default_rng(0).normal(size=(3 * len(PLACES), 2, 9, 7)).astype(np.float32)
    for sample, (value, (row, column)) in enumerate(product([np.inf, -np.inf, np.nan], PLACES)):
        x[sample, 0, row, column] = value
    return x


def outputs_and_gradients(functions, x):
    """Results of JAX and of torch, for each function; the outputs' gradients are random numbers."""
    tensor = torch.from_numpy(x).requires_grad_()
    references = [function(tensor) for function in functions]
    draw = np.random.default_rng(1).normal
    cotangents = [draw(size=out.shape).astype(np.float32) for out in references]
    gradients = [
        torch.autograd.grad(out, tensor, torch.from_numpy(cotangent))[0].numpy()
        for out, cotangent in zip(references, cotangents, strict=True)
    ]
    modules = [to_jax(Function(function)) for function in functions]

    @jax.jit
    def run(x):
        outputs, gradients = [], []
        for module, cotangent in zip(modules, cotangents, strict=True):
            out, transpose = jax.vjp(lambda x, module=module: module.apply({}, {}, x)[0], x)
            outputs.append(out)
            gradients.append(transpose(jnp.asarray(cotangent))[0])
        return outputs, gradients

    outputs, own_gradients = run(x)
    references = [out.detach().numpy() for out in references]
    return zip(outputs, own_gradients, references, gradients, strict=True)


RESIZE = partial(partial, F.interpolate)
INTERPOLATIONS = {
    "bilinear": RESIZE(size=(27, 14), mode="bilinear"),
    "bilinear, aligned corners": RESIZE(size=(5, 12), mode="bilinear", align_corners=True),
    "bilinear, antialiased": RESIZE(size=(5, 12), mode="bilinear", antialias=True),
    "bicubic": RESIZE(size=(27, 14), mode="bicubic"),
    "bicubic, aligned corners": RESIZE(size=(6, 12), mode="bicubic", align_corners=True),
    "bicubic, antialiased": RESIZE(size=(4, 12), mode="bicubic", antialias=True),
    "area": RESIZE(size=(4, 5), mode="area"),
    "linear": lambda x: F.interpolate(x[:, 0], size=(11,), mode="linear"),
    "trilinear": lambda x: F.interpolate(x[:, None], size=(4, 9, 11), mode="trilinear"),
    "means": partial(F.adaptive_avg_pool2d, output_size=(4, 10)),
    "means of volumes": lambda x: F.adaptive_avg_pool3d(x, (2, 4, 3)),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_interpolations_and_means_spread_it_no_further_than_torch(name):
    """Torch spreads it further: it multiplies by weights of zero, too, and makes NaN of that."""
    results = outputs_and_gradients([INTERPOLATIONS[name]], images())
    for got, gradient, expected, expected_gradient in results:
        defined = ~np.isnan(expected)
        assert defined.mean() > 0.5 and not np.isfinite(got).all()
        # Sums of at most 64 products, of weights below 1 and values below 4.
        np.testing.assert_allclose(np.asarray(got)[defined], expected[defined], 0, 1e-5)
        np.testing.assert_allclose(gradient, expected_gradient, 0, 2e-5)


def _positions():
    """Within 9 × 7 pixels, at their borders, and outside."""
    places = np.random.default_rng(3).uniform(-2, 2, (3 * len(PLACES), 6, 5, 2)).astype(np.float32)
    places[:, 2, :4] = [[-1, -1], [1, 1], [-1, 1], [0, 0]]
    return places


@pytest.mark.sample(2)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_at_positions_read_only_what_is_there(mode, padding):
    """Pixels beside an image count for nothing, whatever its corner holds."""
    options = {"mode": mode, "padding_mode": padding, "grid": torch.from_numpy(_positions())}
    functions = [partial(F.grid_sample, align_corners=a, **options) for a in (True, False)]
    for got, gradient, expected, expected_gradient in outputs_and_gradients(functions, images()):
        assert not np.isfinite(expected).all()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples_at_no_position(mode):
    """torch's kernels for positions that are NaN differ, but none makes one of their neighbours."""
    x = np.random.default_rng(0).normal(size=(1, 2, 9, 7)).astype(np.float32)
    grid = np.array([[np.nan, 0], [0, np.nan], [0.2, 0.1]], np.float32)[None, None]
    for padding in ("zeros", "border"):

        def sample(x, padding=padding):
            return F.grid_sample(
                x, torch.from_numpy(grid), mode, padding_mode=padding, align_corners=False
            )

        got = to_jax(Function(sample)).apply({}, {}, x)[0]
        np.testing.assert_allclose(got, sample(torch.from_numpy(x)), rtol=1e-5, atol=2e-5)


LIMITS = {
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp, one limit": lambda x: x.clamp_min(0) + x.clamp_max(1),
    "clamp, tensors": lambda x: x.clamp(torch.tensor(-1.0), torch.tensor(1.0)),
    "clamp, one tensor": lambda x: x.clamp_min(torch.tensor(0.0)) + x.clamp(max=torch.tensor(1.0)),
}


def test_functions_with_limits():
    values = [np.nan, -np.inf, np.inf, -3, 3, -1, 1, 0, 2.9, -2.9, 1e30, -1e30]
    x = np.tile(np.array(values, np.float32), 8)
    results = outputs_and_gradients([*LIMITS.values()], x)
    for name, (got, gradient, expected, expected_gradient) in zip(LIMITS, results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, err_msg=name)


@pytest.mark.filterwarnings(r"ignore:.*degrees of freedom")
@pytest.mark.parametrize("correction", [3, 3.5, 4, 5, 9])
def test_variances_without_degrees_of_freedom(correction):
    x = np.array([[1, 2, 4, 8], [0, -1, 5, 2]], np.float32)
    functions = [
        lambda x: x.var(1, correction=correction),
        lambda x: x.std(1, correction=correction),
        lambda x: torch.var_mean(x, 1, correction=correction)[0],
    ]
    for got, gradient, expected, expected_gradient in outputs_and_gradients(functions, x):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        if correction != 4:  # torch's are infinite there, JAX's NaN
            np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    for values in ([1, 2], [3, 3]):
        pair = torch.tensor([values], dtype=torch.complex64)
        got = to_jax(Function(functions[0])).apply({}, {}, pair.numpy())[0]
        np.testing.assert_allclose(got, functions[0](pair))


def test_means_of_no_windows_are_empty():
    x = torch.ones(2, 3, 8, 8)
    module = torch.nn.AdaptiveAvgPool2d((0, 3))
    assert to_jax(module).apply({}, {}, x.numpy())[0].shape == module(x).shape


def test_losses_and_probabilities_of_infinite_logits():
    rows = np.random.default_rng(2).normal(size=(8, 4)).astype(np.float32)
    for row, values in enumerate(
        [[np.inf], [np.inf, np.inf], [-np.inf], [-np.inf] * 4, [np.inf, -np.inf], [np.nan]]
    ):
        rows[row, : len(values)] = values
    targets = torch.tensor([0.0, 1.0, 0.3, 0.7])
    functions = [
        partial(F.binary_cross_entropy_with_logits, target=targets.expand(8, 4), reduction="none"),
        partial(
            F.binary_cross_entropy_with_logits,
            target=targets.round().expand(8, 4),
            reduction="none",
            pos_weight=torch.tensor([1.0, 2.0, 0.5, 3.0]),
        ),
        partial(torch.softmax, dim=-1),
        partial(torch.log_softmax, dim=0),
        partial(F.cross_entropy, target=torch.arange(8) % 4, reduction="none"),
    ]
    for got, gradient, expected, expected_gradient in outputs_and_gradients(functions, rows):
        assert not np.isfinite(expected).all()
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6, atol=2e-6)
