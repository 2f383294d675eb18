"""Tensors over the memory of parameters and buffers, and `.data`, as torch has them or refused."""

import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax
from tests.merging_adapter import Merging

X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


class Net(nn.Module):
    def __init__(self, setup: Callable[[Any], Any], code: Callable[[Any, Any], Any]) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.code = code
        setup(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.code(self, x)


def keeps(make: Callable[[torch.Tensor], Any]) -> Callable[[Any], None]:
    def setup(s: Any) -> None:
        s.kept = make(s.weight)

    return setup


def buffers(s: Any) -> None:
    s.register_buffer("a", torch.randn(4, 4))
    s.register_buffer("b", torch.randn(4, 4))


def frozen_average(s: Any) -> None:
    s.a = nn.Parameter(torch.randn(4, 4), requires_grad=False)


def frozen_alias(s: Any) -> None:
    s.weight.requires_grad_(False)
    s.kept = s.weight.data


def swap(s: Any, x: Any) -> Any:
    own = s.weight.data
    s.weight.data = s.a.data
    y = x @ s.weight
    s.weight.data = own
    return y


def swapped(s: Any, x: Any) -> Any:
    with torch.no_grad():
        y = swap(s, x)
    return y + x @ s.weight


def swapped_by_copies(s: Any, x: Any) -> Any:
    with torch.no_grad():
        own = s.weight.data.clone()
        y = swap(s, x)
        s.weight.data = s.weight.data
    return y + x @ own


def exchanged(s: Any, x: Any) -> Any:
    s.a.data, s.b.data = s.b.data, s.a.data
    s.a.add_(1)
    return x @ s.a + s.b


def shared(s: Any, x: Any) -> Any:
    s.a.data = s.b.data
    s.b.mul_(2)
    return x @ s.a


def old_view(s: Any, x: Any) -> Any:
    row = s.a[0]
    s.a.data = s.b.data * 2
    return x * row + s.a


def window(s: Any) -> None:
    s.register_buffer("a", torch.zeros(4))
    s.kept = s.a[:2]


def from_numpy(s: Any) -> None:
    s.kept = np.ones(4, np.float32)
    s.register_buffer("a", torch.from_numpy(s.kept))


def interleaved(s: Any) -> None:
    both = torch.randn(8)
    s.p, s.q = nn.Parameter(both[::2]), nn.Parameter(both[1::2])


def frozen_for_a_while(s: Any, x: Any) -> Any:
    y = x @ s.weight
    s.weight.requires_grad_(False)
    z = x.sin() @ s.weight
    s.weight.requires_grad_(True)
    return y + z * 2 + x.cos() @ s.weight


def parts(s: Any) -> None:
    s.flat = torch.randn(32)
    s.p, s.q = (nn.Parameter(part.view(4, 4)) for part in s.flat.chunk(2))


RIGHT: dict[str, tuple[Callable, Callable]] = {
    "data": (keeps(lambda w: w.data), lambda s, x: x @ s.kept + s.weight.sum()),
    "detach": (keeps(lambda w: w.detach()), lambda s, x: x @ s.kept + s.weight.sum()),
    "view": (keeps(lambda w: w.view(2, 8)), lambda s, x: x * s.kept.view(4, 4)),
    "flat": (keeps(lambda w: w.data.view(-1)), lambda s, x: x * s.kept.view(4, 4) * s.weight),
    "transposed": (keeps(lambda w: w.data.t()), lambda s, x: x @ s.kept + s.weight.sum()),
    "row": (keeps(lambda w: w.data[1]), lambda s, x: x * s.kept + s.weight.sum()),
    "slice with a gradient": (keeps(lambda w: w[1:, 2:]), lambda s, x: x + s.kept.sum()),
    "list": (keeps(lambda w: [w.data]), lambda s, x: x @ s.kept[0] + s.weight.sum()),
    "object": (
        keeps(lambda w: types.SimpleNamespace(t=w.data)),
        lambda s, x: x @ s.kept.t + s.weight.sum(),
    ),
    "frozen": (frozen_alias, lambda s, x: x @ s.kept),
    "swap with an average": (frozen_average, swapped),
    "swap with a buffer": (buffers, swapped),
    "swap and copies": (buffers, swapped_by_copies),
    "exchange": (buffers, exchanged),
    "shared by data": (buffers, shared),
    "view before data": (buffers, old_view),
    "window of a buffer": (window, lambda s, x: x + s.kept.sum() + s.a),
    "buffer from NumPy": (from_numpy, lambda s, x: x + torch.from_numpy(s.kept) + s.a),
    "frozen for a while": (buffers, frozen_for_a_while),
    "parts of a flat tensor": (parts, lambda s, x: x @ s.p + x.sin() @ s.q),
    "interleaved": (interleaved, lambda s, x: x * s.p + s.q),
}


def _move(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5).add_(0.1)


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", RIGHT)
def test_values_follow_the_weights(name):
    net, reference = Net(*RIGHT[name]), Net(*RIGHT[name])
    jm = to_jax(net)
    apply = jax.jit(lambda p, b: jm.apply(p, b, X))
    gradient = jax.jit(jax.grad(lambda p, b: (jm.apply(p, b, X)[0] ** 2).sum()))
    params, state = dict(jm.params), dict(jm.buffers)
    for _ in range(3):
        gradients = gradient(params, state)
        outputs, state = apply(params, state)
        reference.zero_grad()
        expected = reference(torch.from_numpy(X))
        np.testing.assert_allclose(outputs, expected.detach(), rtol=1e-4, atol=1e-4)
        if expected.requires_grad and not name.startswith("shared"):
            (expected**2).sum().backward()
            for key, value in gradients.items():
                grad = reference.get_parameter(key).grad
                want = np.zeros(value.shape) if grad is None else grad.numpy()
                np.testing.assert_allclose(value, want, rtol=1e-3, atol=1e-3)
        for key, buffer in reference.named_buffers():
            np.testing.assert_allclose(state[key], buffer, rtol=1e-4, atol=1e-4)
        _move(reference)
        params = {k: v * 1.5 + 0.1 for k, v in params.items()}
        state = {k: v * 1.5 + 0.1 if k in jm.frozen else v for k, v in state.items()}


def overlapping_buffers(s: Any) -> None:
    s.register_buffer("a", torch.zeros(6))
    s.register_buffer("b", s.a[2:])


def overlapping_parameters(s: Any) -> None:
    s.big = nn.Parameter(torch.randn(10))
    s.part = nn.Parameter(s.big.data[6:])


def tied_buffers(s: Any) -> None:
    s.register_buffer("a", torch.zeros(4))
    s.register_buffer("b", s.a)


def closure(s: Any) -> None:
    kept = s.weight.data
    s.function = lambda x: x @ kept


def replaced(s: Any, x: Any) -> Any:
    s.weight = nn.Parameter(s.weight.detach() * 2)
    return x @ s.weight


def removed(s: Any, x: Any) -> Any:
    y = x @ s.weight
    del s.weight
    return y


def moved(s: Any, x: Any) -> Any:
    s.weight.data = s.weight.data * 2
    return x @ s.weight


def rebound_buffer(s: Any, x: Any) -> Any:
    s.a = s.a + 1
    return x + s.b


def written(s: Any, x: Any) -> Any:
    s.a.add_(1)
    return x + s.kept.sum()


def array_over_buffer(s: Any) -> None:
    s.register_buffer("a", torch.zeros(4))
    s.kept = s.a.numpy()


def whole_to_float(s: Any, x: Any) -> Any:
    s.a = s.a + 0.5
    return x * s.a


def frozen_for_good(s: Any, x: Any) -> Any:
    s.weight.requires_grad_(False)
    return x @ s.weight


def nothing(s: Any) -> None:
    """Only the weight."""


REFUSED: dict[str, tuple[Callable, Callable, str]] = {
    "buffers": (overlapping_buffers, lambda s, x: x, "over the same memory"),
    "parameters": (overlapping_parameters, lambda s, x: x, "over the same memory"),
    "NumPy": (keeps(lambda w: w.detach().numpy()), lambda s, x: x, "NumPy array over"),
    "closure": (closure, lambda s, x: s.function(x), "as it was before the conversion"),
    "replaced": (nothing, replaced, "replaces the parameter weight"),
    "removed": (nothing, removed, "replaces the parameter weight"),
    "data": (nothing, moved, "replaces the parameter weight"),
    "frozen": (nothing, frozen_for_good, "leaves requires_grad of weight False"),
    "flat": (
        parts,
        lambda s, x: x @ s.p + s.flat.sum(),
        r"shape \(32,\) over a part of the memory",
    ),
    "swap with a gradient": (buffers, swap, "torch would compute with the new value"),
    "one of two names": (tied_buffers, rebound_buffer, "under one of its names"),
    "NumPy of a written buffer": (array_over_buffer, written, "another tensor over the same"),
    "dtype": (
        lambda s: s.register_buffer("a", torch.zeros(4, dtype=torch.int64)),
        whole_to_float,
        "replaces the buffer a of torch.int64 by torch.float32",
    ),
    "window of a written buffer": (window, written, "another tensor over the same memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_part_company_is_refused(name):
    setup, code, message = REFUSED[name]
    with pytest.raises(UnsupportedTorchError, match=message):
        jm = to_jax(Net(setup, code))
        jm.apply(jm.params, jm.buffers, X)


def test_a_mode_that_changes_weights_is_refused_and_may_be_set_before():
    jm = to_jax(Merging())
    with pytest.raises(UnsupportedTorchError, match=r"eval\(\) of Merging changes weight"):
        jm.apply(jm.params, jm.buffers, X, train=False)
    np.testing.assert_allclose(
        jm.apply(jm.params, jm.buffers, X, train=True)[0],
        Merging()(torch.from_numpy(X)).detach(),
        atol=1e-5,
    )
    module = Merging().eval()
    jm, state = to_jax(module), None
    for train in (None, False, None):
        outputs, state = jm.apply(jm.params, state or jm.buffers, X, train=train)
        np.testing.assert_allclose(outputs, module(torch.from_numpy(X)).detach(), atol=1e-5)


def test_an_attribute_that_keeps_the_old_tensor_of_a_replaced_buffer_is_refused():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))
            self.first = self.scale

        def forward(self, x):
            self.scale = self.scale * 2
            return x * self.first

    model = to_jax(Net())
    with pytest.raises(UnsupportedTorchError, match="old tensor stays in `first` of Net"):
        jax.eval_shape(lambda x: model.apply({}, model.buffers, x), np.ones((2, 4), np.float32))
