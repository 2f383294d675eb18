"""CTC loss against torch: values and gradients of every reduction, length and kind of target."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop import to_jax

T, N, C = 8, 4, 5
TARGETS = torch.tensor([[1, 2, 2], [3, 1, 4], [2, 0, 0], [1, 1, 1]])
IN, OUT = torch.tensor([8, 7, 5, 4]), torch.tensor([3, 3, 1, 3])
LENGTHS: Any = ((8, 7, 5, 4), (3, 3, 1, 3))
LOGITS = np.random.default_rng(0).standard_normal((T, N, C)).astype(np.float32)


class Loss(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, logits):
        return self.function(logits.log_softmax(-1))


CASES = {
    "mean": lambda p: F.ctc_loss(p, TARGETS, IN, OUT),
    "lengths of Python": lambda p: F.ctc_loss(p, TARGETS, *LENGTHS),
    "each": lambda p: F.ctc_loss(p, TARGETS, IN, OUT, reduction="none"),
    "sum": lambda p: F.ctc_loss(p, TARGETS, IN, torch.tensor([2, 3, 1, 3]), reduction="sum"),
    "blank 3": lambda p: F.ctc_loss(p, TARGETS.clamp(max=2), IN, OUT, blank=3),
    "one row": lambda p: F.ctc_loss(p, torch.tensor([1, 2, 2, 3, 1, 4, 2, 1, 1, 1]), IN, OUT),
    "no target": lambda p: F.ctc_loss(p, TARGETS, IN, torch.tensor([0, 3, 0, 1]), reduction="none"),
    "too short": lambda p: F.ctc_loss(
        p, TARGETS, torch.tensor([2, 7, 5, 4]), OUT, reduction="none", zero_infinity=True
    ),
    "one sample": lambda p: F.ctc_loss(p[:, 0], TARGETS[0], IN[0], OUT[0]),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    module = Loss(CASES[name])
    logits = torch.from_numpy(LOGITS).requires_grad_()
    expected = module(logits)
    expected.sum().backward()
    converted = to_jax(module)

    def loss(logits):
        output = converted.apply({}, {}, logits)[0]
        return output.sum(), output

    gradient, output = jax.jit(jax.grad(loss, has_aux=True))(LOGITS)
    np.testing.assert_allclose(output, expected.detach(), rtol=1e-5)
    assert logits.grad is not None
    np.testing.assert_allclose(gradient, logits.grad, atol=1e-5)


@pytest.mark.slow
def test_the_gradient_of_probabilities_that_are_no_softmax_is_torchs():
    values = torch.from_numpy(LOGITS).requires_grad_()
    F.ctc_loss(values, TARGETS, IN, OUT).backward()
    module = to_jax(nn.CTCLoss())
    rest = (TARGETS.numpy(), IN.numpy(), OUT.numpy())
    gradient = jax.grad(lambda p: module.apply({}, {}, p, *rest)[0])(LOGITS)
    assert values.grad is not None
    np.testing.assert_allclose(gradient, values.grad, atol=1e-5)


def test_a_target_that_does_not_fit_is_infinitely_unlikely():
    module = Loss(
        lambda p: F.ctc_loss(p, TARGETS, torch.tensor([2, 7, 5, 4]), OUT, reduction="none")
    )
    output = to_jax(module).apply({}, {}, LOGITS)[0]
    np.testing.assert_allclose(output, module(torch.from_numpy(LOGITS)), rtol=1e-5)
    assert np.isinf(output[0])
