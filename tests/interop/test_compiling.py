"""Branches on values that torch code skips while it is compiled are skipped while JAX traces."""

import importlib
import threading
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.compiler import is_compiling

from jaxsr.interop import to_jax

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


class Masked(nn.Module):
    """Looks whether the mask is all ones, as transformers does."""

    def __init__(self, question):
        super().__init__()
        self.question = question

    def forward(self, x, mask):
        if not self.question(mask) and bool((mask == 1).all()):
            return x.softmax(-1)
        return x.masked_fill(mask == 0, float("-inf")).softmax(-1)


QUESTIONS = {
    "torch.compiler": lambda _: torch.compiler.is_compiling(),
    "imported name": lambda _: is_compiling(),
    "torch._dynamo": lambda _: torch._dynamo.is_compiling(),
    "jax attribute": lambda x: hasattr(x, "jax") and isinstance(x.jax(), jax.core.Tracer),
}


@pytest.mark.parametrize("mask", [[[1, 1, 1]] * 2, [[1, 1, 0], [1, 0, 0]]])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_traced_mask_is_not_read(question, mask):
    module, mask = Masked(QUESTIONS[question]), np.array(mask)
    apply = jax.jit(lambda x, m: to_jax(module).apply({}, {}, x, m)[0])
    expected = module(torch.from_numpy(X), torch.from_numpy(mask))
    np.testing.assert_allclose(apply(X, mask), expected, atol=1e-6)
    assert not torch.compiler.is_compiling()


def test_the_answer_outside_is_untouched():
    answers = []

    class Raises(nn.Module):
        def forward(self, x):
            answers.append(torch.compiler.is_compiling())
            raise ValueError("stop")

    jm = to_jax(Raises())
    with pytest.raises(ValueError, match="stop"):
        jm.apply({}, {}, X)
    thread = threading.Thread(target=lambda: answers.append(torch.compiler.is_compiling()))
    thread.start()
    thread.join()
    assert answers == [True, False]


class Checked(nn.Module):
    """Checks values as transformers does while it is compiled, and scans as its Mamba does."""

    def forward(self, x):
        torch._check_tensor_all(x < 100)
        x = torch.where(torch._is_all_true(x < 100) & torch._is_any_true(x > 0), x, -x)
        scan = importlib.import_module("torch._higher_order_ops.associative_scan")
        if not torch.compiler.is_compiling():
            return x.cumsum(1), x.flip(1).cumprod(1).flip(1)
        sums, products = x, x
        sums = scan.associative_scan(lambda a, b: a + b, sums, dim=1, combine_mode="generic")
        (products,) = scan.associative_scan(
            lambda a, b: (a[0] * b[0],), (products,), dim=-1, reverse=True
        )
        return sums, products


def test_checks_and_scans_of_compiled_code():
    jm = to_jax(Checked())
    x = torch.from_numpy(X).requires_grad_()
    sums, products = Checked()(x)
    (sums.sum() + products.sum()).backward()
    outputs = jax.jit(lambda x: jm.apply({}, {}, x)[0])(X)
    for actual, expected in zip(outputs, (sums, products), strict=True):
        np.testing.assert_allclose(actual, expected.detach(), atol=1e-6)
    loss = jax.jit(lambda x: sum(y.sum() for y in jm.apply({}, {}, x)[0]))
    assert x.grad is not None
    np.testing.assert_allclose(jax.grad(loss)(X), x.grad, atol=1e-5)


def test_a_module_cast_to_its_own_dtype_in_forward():
    class Casts(nn.Linear):
        def forward(self, x):
            self.to(self.weight.dtype)
            return super().forward(x)

    torch.manual_seed(0)
    module = Casts(3, 3)
    jm = to_jax(module)
    actual = jm.apply(jm.params, {}, X)[0]
    np.testing.assert_allclose(actual, module(torch.from_numpy(X)).detach(), atol=1e-6)


def test_code_that_fails_only_while_compiling_is_traced_as_torch_runs_it():
    class NeedsMask(nn.Module):
        """T5's kin make their mask only where torch does not compile, and then need it."""

        def forward(self, x, mask: Any = None):
            if not is_compiling() and mask is None:
                mask = torch.ones(x.shape[0])
            return x * mask[:, None]  # pyright: ignore[reportOptionalSubscript]

    jm = to_jax(NeedsMask())
    np.testing.assert_array_equal(jax.jit(lambda x: jm.apply({}, {}, x)[0])(X), X)
    with pytest.raises(TypeError, match="not subscriptable"):  # the first error, where both fail
        to_jax(Always()).apply({}, {}, X)


class Always(nn.Module):
    def forward(self, x):
        mask: Any = None if is_compiling() else 3
        return x * mask[:, None]
