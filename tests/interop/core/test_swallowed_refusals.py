"""A refusal reaches the caller, whatever the module's code does with it; so do hooks and seeds."""

import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax

with warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)
    from tests.interop.core import return_in_finally

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


class Net(nn.Module):
    def __init__(self, code: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.code = code

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 1.0
        try:
            self.code(x)
            factor = 2.0
        except Exception:
            factor = 3.0
        return x * factor


def _suppressed(x: torch.Tensor) -> None:
    with contextlib.suppress(NotImplementedError):
        float(x.sum())


def _seed_in_fork(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return torch.rand(3)


def _replayed(x: torch.Tensor) -> torch.Tensor:
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return first + torch.rand(3)


def _packed(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return x.sin()


SWALLOWED = {
    "float": lambda x: float(x.abs().max()),
    "branch": lambda x: 1 if x.sum() > 0 else 0,
    "size": lambda x: torch.zeros(int(x.argmax())),
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
    "list": lambda x: x.tolist(),
    "unique": lambda x: x.unique(),
    "rows": lambda x: int(x[x > 0].shape[0]),
    "suppress": _suppressed,
    "finally": return_in_finally.forward,
    "backward": lambda x: (x * 2).sum().backward(),
    "hook": lambda x: x.register_hook(print),
    "hook after accumulating": lambda x: x.register_post_accumulate_grad_hook(print),
    "generator": lambda x: torch.rand(3, generator=torch.Generator()),
    "seed": lambda x: torch.manual_seed(7),
    "seed by name": lambda x: torch.default_generator.manual_seed(7),
    "seed of fork": _seed_in_fork,
    "replayed": _replayed,
    "random seed": lambda x: torch.seed(),
    "saved tensors": _packed,
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", SWALLOWED)
def test_what_code_catches_is_refused(name):
    jm = to_jax(Net(SWALLOWED[name]))
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedTorchError):
        jax.eval_shape(lambda x: jm.apply({}, {}, x, rng=jax.random.key(0))[0], X)
    assert torch.equal(torch.get_rng_state(), state)


PASSES = {
    "torch's own error": lambda x: x @ x,
    "nothing": lambda x: x.sin(),
}


@pytest.mark.parametrize("name", ["torch's own error", "nothing"])
def test_errors_of_torch_may_be_caught(name):
    net = Net(PASSES[name])
    outputs, _ = to_jax(net).apply({}, {}, X)
    np.testing.assert_allclose(outputs, net(torch.from_numpy(X)))
    # The next trace knows nothing of an earlier one's refusals.
    with pytest.raises(UnsupportedTorchError):
        to_jax(Net(SWALLOWED["float"])).apply({}, {}, X)
    np.testing.assert_allclose(to_jax(net).apply({}, {}, X)[0], net(torch.from_numpy(X)))


class Hooked(nn.Linear):
    def __init__(self, kind: str) -> None:
        super().__init__(4, 4)
        if kind == "gradient":
            self.weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
        elif kind == "accumulated":
            self.weight.register_post_accumulate_grad_hook(lambda p: None)
        elif kind == "module":
            self.register_full_backward_hook(lambda *_: None)


@pytest.mark.parametrize("kind", ["gradient", "accumulated", "module"])
def test_gradient_hooks_are_refused_by_name(kind):
    with pytest.raises(UnsupportedTorchError, match=r"hook, which JAX would not"):
        to_jax(nn.Sequential(Hooked(kind)))
    frozen = Hooked("gradient").requires_grad_(False)
    np.testing.assert_allclose(
        to_jax(frozen).apply({}, to_jax(frozen).buffers, X)[0],
        frozen(torch.from_numpy(X)),
        atol=1e-6,
    )


def test_a_backward_hook_of_all_modules_is_refused():
    handle = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    try:
        with pytest.raises(UnsupportedTorchError, match="backward hook for all modules"):
            to_jax(nn.Linear(4, 4))
    finally:
        handle.remove()


def test_a_thread_that_forward_starts_is_refused(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # prints what ended the thread

    def in_a_thread(x, *results):
        results = list(results)
        thread = threading.Thread(target=lambda: results.append(x * 2))
        thread.start()
        thread.join()
        return results[-1]  # without a default, an IndexError

    class Threaded(nn.Module):
        def forward(self, x, *results):
            return in_a_thread(x, *results)

    for defaults in ((X,), ()):
        with pytest.raises(UnsupportedTorchError, match="in a thread that forward starts"):
            to_jax(Threaded()).apply({}, {}, X, *defaults)
