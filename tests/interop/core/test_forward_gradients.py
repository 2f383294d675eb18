"""`torch.autograd.grad` in the traced code, against torch: values, and gradients through them."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from jaxsr.interop import to_jax
from jaxsr.interop.errors import UnsupportedTorchError


class Code(nn.Module):
    """A network, and a function of it and the inputs."""

    def __init__(self, function: Callable, network: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.network = network

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self.network, *inputs)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1))


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def jitted_and_eager(programs: Iterable[Any]) -> list[Any]:
    """Each program under jit and step by step, of which by default the first alone."""
    eager = [
        pytest.param(each, False, marks=pytest.mark.slow if place else ())
        for place, each in enumerate(programs)
    ]
    return [*((each, True) for each in programs), *eager]


def assert_as_torch(
    function: Callable,
    network: nn.Module,
    *inputs: torch.Tensor,
    jit: bool = True,
    train: bool = True,
    rtol: float = 2e-5,
) -> None:
    """The function's sum, and its gradients with respect to all parameters."""
    module = Code(function, network).train(train)
    parameters = dict(module.named_parameters())
    converted = to_jax(module)
    with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative in torch
        expected = module(*(t.clone() for t in inputs)).sum()
        gradients = grad(expected, list(parameters.values()), allow_unused=True)

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        arrays = [jnp.asarray(t.numpy()) for t in inputs]
        return converted.apply(params, converted.buffers, *arrays, train=train)[0].sum()

    value, actual = (jax.jit if jit else lambda f: f)(jax.value_and_grad(loss))(converted.params)
    np.testing.assert_allclose(value, expected.detach(), rtol=rtol)
    largest = max(g.abs().max() for g in gradients if g is not None)
    for name, gradient in zip(parameters, gradients, strict=True):
        want = 0 if gradient is None else gradient.numpy()
        np.testing.assert_allclose(actual[name], want, rtol=rtol, atol=rtol * float(largest))


def gradient_penalty(critic: nn.Module, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """Gradient penalty of the Wasserstein GAN."""
    mixed = (0.3 * real + 0.7 * fake).requires_grad_(True)
    out = critic(mixed)
    (gradient,) = grad(out, mixed, torch.ones_like(out), create_graph=True, retain_graph=True)
    penalty = (gradient.flatten(1).norm(2, dim=1) - 1) ** 2
    return 10 * penalty.mean() + critic(fake).mean() - critic(real).mean()


def zero_centred_penalty(critic: nn.Module, real: torch.Tensor) -> torch.Tensor:
    """R1, at images that the critic sees twice."""
    leaf = real.detach().requires_grad_()
    (gradient,) = grad([critic(leaf).sum()], inputs=[leaf], create_graph=True)
    return gradient.square().flatten(1).sum(1).mean() + critic(real).square().mean()


def forces(network: nn.Module, positions: torch.Tensor) -> torch.Tensor:
    positions = positions.requires_grad_()
    energy = network(positions).sum()
    return -grad(energy, positions, create_graph=network.training)[0].square()


def laplacian(network: Any, x: torch.Tensor) -> torch.Tensor:
    """As a physics-informed network takes it: a gradient of each component of a gradient."""
    x.requires_grad = True
    u = network(x)
    (slope,) = grad(u, x, torch.ones_like(u), create_graph=True)
    second = [grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(x.shape[1])]
    return (sum(second) - torch.sin(u[:, 0])) ** 2


def adaptive_weight(network: Any, x: torch.Tensor) -> torch.Tensor:
    """The weight of VQGAN's second loss, of gradients of the last layer."""
    out = network(x)
    first, second, last = (out - 1).abs().mean(), -out.mean(), network[-1].weight
    one = grad(first, last, retain_graph=True)[0]
    two = grad(second, last, retain_graph=True)[0]
    weight = (one.norm() / (two.norm() + 1e-4)).clamp(0, 1e4).detach()
    return first + weight * second


PROGRAMS = {
    "gradient penalty": (gradient_penalty, (points(4, 3), points(4, 3, seed=1))),
    "zero-centred penalty": (zero_centred_penalty, (points(4, 3),)),
    "forces": (forces, (points(5, 3),)),
    "laplacian": (laplacian, (points(6, 3),)),
    "adaptive weight": (adaptive_weight, (points(6, 3),)),
}


@pytest.mark.parametrize(("name", "jit"), jitted_and_eager(PROGRAMS))
def test_programs(name: str, jit: bool) -> None:
    function, inputs = PROGRAMS[name]
    assert_as_torch(function, mlp(), *inputs, jit=jit)


LAYERS = {
    "convolutions": lambda: [
        nn.Conv2d(3, 8, 3, 2, padding=1), nn.LeakyReLU(0.2), nn.ConvTranspose2d(8, 4, 4, 2, 1),
    ],
    "grouped, dilated": lambda: [nn.Conv2d(3, 9, 3, groups=3, dilation=2), nn.GELU()],
    "spectral norm": lambda: [nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))],
    "batch norm": lambda: [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU()],
    "layer norms": lambda: [nn.GroupNorm(3, 3), nn.InstanceNorm2d(3, affine=True), nn.Softplus()],
    "pooling": lambda: [nn.Conv2d(3, 4, 3), nn.ELU(), nn.MaxPool2d(2), nn.AvgPool2d(2)],
    "resampling": lambda: [
        nn.Conv2d(3, 4, 3), nn.Mish(), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.PixelUnshuffle(2), nn.Sigmoid(),
    ],
    "attention": lambda: [
        nn.Flatten(2), nn.TransformerEncoderLayer(64, 4, 32, 0.0, batch_first=True),
    ],
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("layers", LAYERS)
def test_second_derivatives_of_layers(layers: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*LAYERS[layers](), nn.Flatten(), nn.LazyLinear(1))
    images = points(2, 3, 8, 8), points(2, 3, 8, 8, seed=1)
    network(images[0])
    assert_as_torch(gradient_penalty, network, *images, rtol=2e-4)


def test_second_derivative_of_a_recurrent_layer() -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 5, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0].mean((1, 2))

    torch.manual_seed(0)
    assert_as_torch(gradient_penalty, Critic(), points(2, 4, 3), points(2, 4, 3, seed=1))


def test_without_create_graph_a_gradient_is_a_constant() -> None:
    def function(network: Any, x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        (gradient,) = grad(network(x).sum(), x)
        assert not gradient.requires_grad
        return network(x + gradient).square()

    assert_as_torch(function, mlp(), points(5, 3))


def test_unused_inputs() -> None:
    def function(network: Any, x: torch.Tensor) -> torch.Tensor:
        out = network[0](x).square().sum()
        weights = [network[0].weight, network[2].weight, network[4].bias]
        one, none, _ = grad(out, weights, create_graph=True, allow_unused=True)
        assert none is None
        _, zeros, _ = grad(out, weights, create_graph=True, materialize_grads=True)
        assert zeros.shape == weights[1].shape
        return one.square().sum() + zeros.sum() + network(x)

    assert_as_torch(function, mlp(), points(5, 3))


def test_inputs_that_depend_on_each_other() -> None:
    def function(network: Any, x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        hidden = network[0](x)
        copy = hidden.clone()
        out = (network[1:](hidden) * copy.sum(1, keepdim=True)).sum()
        gradients = grad(out, [copy, x, hidden, network[0].bias, x], create_graph=True)
        return torch.stack([g.square().sum() * (i + 1) for i, g in enumerate(gradients)])

    assert_as_torch(function, mlp(), points(5, 3))


def test_batched_gradients_and_functional_jacobian() -> None:
    def function(network: Any, x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        hidden = network[:3](x).sum(0)
        rows = grad(hidden, x, torch.eye(8), create_graph=True, is_grads_batched=True)[0]
        jacobian = torch.autograd.functional.jacobian(
            lambda y: network[:3](y).sum(0), x, create_graph=True
        )
        return rows.square().sum() + jacobian.sin().sum()

    assert_as_torch(function, mlp(), points(5, 3))


def test_functional_hessian() -> None:
    def function(network: Any, x: torch.Tensor) -> torch.Tensor:
        hessian = torch.autograd.functional.hessian(
            lambda y: network(y).sum(), x, create_graph=True
        )
        assert isinstance(hessian, torch.Tensor)
        return hessian.square()

    assert_as_torch(function, mlp(), points(2, 3))


_F = torch.autograd.functional
FUNCTIONAL: dict[str, Callable] = {
    "jacobian": lambda f, x: _F.jacobian(f, x, create_graph=True),
    "hessian": lambda f, x: _F.hessian(lambda y: f(y).sum(), x, create_graph=True),
    "vjp": lambda f, x: _F.vjp(lambda y: f(y).sum(), x, create_graph=True)[1],
    "jvp": lambda f, x: _F.jvp(f, x, x * 2, create_graph=True)[1],
    "hvp": lambda f, x: _F.hvp(lambda y: f(y).sum(), x, x.detach() + 1, create_graph=True)[1],
    "no graph": lambda f, x: _F.jacobian(f, x) * x.sum(),
    "no graph nor parameters": lambda f, x: _F.jacobian(torch.sin, x) * x.sum(),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_derivatives_depend_on_inputs_of_apply(name: str) -> None:
    """Which need not be marked with `requires_grad`; torch would detach those."""
    network, x = mlp(), points(2, 3)
    module = Code(FUNCTIONAL[name], network)
    leaf = x.clone().requires_grad_()
    (expected,) = grad(module(leaf).square().sum(), leaf)
    converted = to_jax(module)

    def loss(x: jax.Array) -> jax.Array:
        return (converted.apply(converted.params, converted.buffers, x)[0] ** 2).sum()

    actual = jax.jit(jax.grad(loss))(jnp.asarray(x.numpy()))
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-6)


def test_complex_gradients() -> None:
    def function(network: Any, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(network[0](x))
        out = (spectrum * (1 + 2j)).abs().square().sum() + (spectrum**2).imag.sum()
        (gradient,) = grad(out, spectrum, create_graph=True)
        return (gradient * (2 - 1j)).real

    assert_as_torch(function, mlp(), points(5, 3))


def test_dropout_draws_the_same_numbers() -> None:
    def function(network: Any, x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        out = network(x)
        (gradient,) = grad(out.sum(), x, create_graph=True)
        return torch.stack([out.sum(), (gradient * x).sum()])

    linear = nn.Sequential(nn.Linear(3, 64, bias=False), nn.Dropout(), nn.Linear(64, 1, bias=False))
    converted = to_jax(Code(function, linear))
    out, slope = converted.apply(
        converted.params, converted.buffers, jnp.ones((5, 3)), rng=jax.random.key(0), train=True
    )[0]
    np.testing.assert_allclose(out, slope, rtol=1e-5)  # a linear function, of one mask


def test_buffers_are_written_once() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    converted = to_jax(Code(forces, network))
    x = points(5, 3)
    _, buffers = converted.apply(
        converted.params, converted.buffers, jnp.asarray(x.numpy()), train=True
    )
    network(x)
    for name, buffer in network.named_buffers():
        np.testing.assert_allclose(buffers[f"network.{name}"], buffer, rtol=1e-6)


def test_jax_transformations_of_code_that_takes_gradients() -> None:
    def energy(network: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.requires_grad_()
        out = network(x).sum()
        return out, grad(out, x, create_graph=True)[0]

    converted = to_jax(Code(energy, mlp()))

    def run(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return converted.apply(converted.params, converted.buffers, x)[0]

    x = jnp.asarray(points(4, 3).numpy())
    hessian = jax.hessian(lambda x: run(x)[0])(x)
    np.testing.assert_allclose(jax.jacobian(lambda x: run(x)[1])(x), hessian, atol=1e-6)
    batch = jnp.stack([x, 2 * x])
    for value, rows in zip(jax.vmap(run)(batch), zip(run(x), run(2 * x), strict=True), strict=True):
        np.testing.assert_allclose(value, jnp.stack(rows), rtol=1e-5)


def test_a_mesh_of_two_devices() -> None:
    converted = to_jax(Code(forces, mlp()))
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,))
    x = jnp.asarray(points(4, 3).numpy())
    rows = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))
    run = jax.jit(lambda x: converted.apply(converted.params, converted.buffers, x)[0])
    np.testing.assert_allclose(run(rows), run(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda n, x: grad(n(x), x), r"scalar outputs, got shape \(5, 1\); pass grad_outputs="),
        (lambda n, x: grad(n(x).sum(), n(x)), "input 0 .* shape .5, 1., has no gradient"),
        (lambda n, x: grad(n(x.detach()).sum(), x), "after detach"),
        (lambda n, x: grad(n(x).argmax().float(), x), "has no gradient"),
        (lambda n, x: grad(n(x), x, torch.ones(3)), r"shape \(3,\) for an output of shape \(5, 1"),
        (lambda n, x: grad(n(x).sum(), cast(Any, [x, None])), "input 1 .* is a NoneType"),
    ],
)
def test_errors(function: Callable, message: str) -> None:
    converted = to_jax(Code(function, mlp()))
    with pytest.raises((ValueError, RuntimeError), match=rf"test_forward_gradients.*{message}"):
        converted.apply(converted.params, converted.buffers, jnp.ones((5, 3)))


def test_refused_inside_a_checkpoint() -> None:
    converted = to_jax(Code(forces, mlp()), remat="network")

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code = Code(forces, mlp())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.code(x)

    x = jnp.asarray(points(5, 3).numpy())
    plain = to_jax(Code(forces, mlp()))
    np.testing.assert_allclose(
        converted.apply(converted.params, converted.buffers, x)[0],
        plain.apply(plain.params, plain.buffers, x)[0],
        rtol=1e-5,
    )
    inner = to_jax(Inner(), remat="code")
    with pytest.raises(UnsupportedTorchError, match="call it outside"):
        inner.apply(inner.params, inner.buffers, x)
