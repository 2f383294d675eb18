"""`torch.func` inside forward, against torch: values, and gradients through them."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch import func

from jaxsr.interop import to_jax
from jaxsr.interop.errors import UnsupportedTorchError
from tests.interop.core.test_forward_gradients import (
    Code,
    assert_as_torch,
    jitted_and_eager,
    mlp,
    points,
)


def laplacian(network: Any, x: torch.Tensor) -> torch.Tensor:
    """Laplacian for each row, as DeepMD and physics-informed networks take it."""

    def energy(row: torch.Tensor) -> torch.Tensor:
        return network(row).sum()

    return func.vmap(lambda row: func.hessian(energy)(row).diagonal().sum())(x)


def grads_of_arguments(network: Any, x: torch.Tensor) -> torch.Tensor:
    def loss(x: torch.Tensor, scale: dict, *, power: int) -> tuple[torch.Tensor, torch.Tensor]:
        out = network(x * scale["by"])
        return (out**power).sum(), out

    scale = {"by": torch.full((3,), 1.5)}
    (gx, gs), (value, out) = func.grad_and_value(loss, argnums=(0, 1), has_aux=True)(
        x, scale, power=2
    )
    gradient, _ = func.grad(loss, has_aux=True)(x, scale, power=2)
    return gx.sum() + gs["by"].sum() + value + out.sum() + gradient.square().sum()


def products(network: Any, x: torch.Tensor) -> torch.Tensor:
    out, pull, *_ = func.vjp(network, x)
    (back,) = pull(torch.cos(out))
    values, slopes, *_ = func.jvp(network, (x,), (torch.sin(x),))
    return out.sum() + back.square().sum() + (values * slopes).sum()


def jacobians(network: Any, x: torch.Tensor) -> torch.Tensor:
    def head(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return network[:2](x).sum(0) * y

    y = torch.linspace(0, 1, 8)
    back, by_y = func.jacrev(head, argnums=(0, 1))(x, y)
    front = func.jacfwd(head)(x, y)
    chunked = func.jacrev(head, chunk_size=3)(x, y)
    return back.square().sum() + (front * chunked).sum() + by_y.sum()


def of_parameters(network: Any, x: torch.Tensor) -> torch.Tensor:
    """A norm for each row of the gradient by parameters."""
    params: dict[str, torch.Tensor] = dict(network.named_parameters())

    def loss(params: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return func.functional_call(network, params, (row,)).square().sum()

    rows = func.vmap(func.grad(loss), in_dims=(None, 0))(params, x)
    return torch.stack([g.flatten(1).square().sum(1) for g in rows.values()])


PROGRAMS = [laplacian, grads_of_arguments, products, jacobians, of_parameters]


@pytest.mark.parametrize(("program", "jit"), jitted_and_eager(PROGRAMS))
def test_programs(program: Callable, jit: bool) -> None:
    assert_as_torch(program, mlp(), points(4, 3), jit=jit)


def test_complex_arguments() -> None:
    def program(network: Any, x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(network[0](x), network[0](x + 1))
        gradient = func.grad(lambda z: (z**2 * (1 + 3j)).imag.sum())(z)
        return gradient.real + 2 * gradient.imag

    assert_as_torch(program, mlp(), points(4, 3))


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (
            lambda n, x: func.grad(n)(x),
            RuntimeError,
            r"scalar tensor, got \(5, 1\); return its sum",
        ),
        (
            lambda n, x: func.grad(lambda y: torch.autograd.grad(n(y).sum(), y)[0].sum())(x),
            UnsupportedTorchError,
            "call it outside",
        ),
        (
            lambda n, x: func.jvp(lambda y: y.mul_(2).sum(), (x * 1,), (x,))[0],
            UnsupportedTorchError,
            "writes into its argument",
        ),
        (lambda n, x: func.linearize(n, x)[0], UnsupportedTorchError, "linearize|torch.func"),
    ],
)
def test_errors(program: Callable, error: type[Exception], message: str) -> None:
    converted = to_jax(Code(program, mlp()))
    with pytest.raises(error, match=message):
        converted.apply(converted.params, converted.buffers, jnp.ones((5, 3)))
