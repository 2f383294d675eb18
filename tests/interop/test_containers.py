"""Containers of tensors go in and out of `apply` with their type."""

import dataclasses
from collections import OrderedDict, UserDict, namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as torch_pytree

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)

Pair = namedtuple("Pair", ["first", "second"])


class Output(OrderedDict):
    """Like ModelOutput: registered with torch, its context an unhashable list."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


torch_pytree.register_pytree_node(
    Output,
    lambda out: (list(out.values()), list(out.keys())),
    lambda values, keys: Output(zip(keys, values, strict=True)),
    serialized_type_name="tests.Output",
)


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    name: str = "point"
    scale: float = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenPoint:
    x: torch.Tensor
    label: str = "frozen"


class Layer:
    def __init__(self):
        self.keys, self.count = None, 0

    def update(self, keys):
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys])
        self.count += 1
        return self.keys


class Cache:
    """Registered nowhere, as the caches of libraries."""

    def __init__(self):
        self.layers = [Layer(), Layer()]


class Settings(dict):
    pass


class Boxed(UserDict):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        settings = Settings(a=y)
        settings.note = "kept"
        return {
            "output": Output(y=y, nested=Output(z=y * 2, pair=Pair(y, None))),
            "point": Point(y + 1),
            "frozen": FrozenPoint(y + 2),
            "settings": settings,
            "boxed": Boxed(b=y),
            "max": torch.max(y, 0),
        }

    def cached(self, x, cache):
        for layer in cache.layers:
            x = layer.update(self.linear(x))
        return x.sum(), cache

    def read(self, container):
        return self.linear(container.x if hasattr(container, "x") else container.y).sum()


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def _equal(actual, expected):
    assert type(actual) is type(expected)
    actual_leaves, expected_leaves = torch_pytree.tree_leaves(actual), []
    expected_leaves = torch_pytree.tree_leaves(expected)
    for a, b in zip(actual_leaves, expected_leaves, strict=True):
        if isinstance(b, torch.Tensor):
            np.testing.assert_allclose(np.asarray(a), b.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_outputs_keep_their_types(net, transform):
    jm = to_jax(net)
    actual = transform(lambda p, x: jm.apply(p, {}, x)[0])(jm.params, X)
    expected = net(torch.from_numpy(X))
    assert isinstance(actual["output"].nested.pair, Pair)
    for name in ("output", "max"):
        _equal(actual[name], expected[name])
    for name in ("point", "frozen"):
        assert type(actual[name]) is type(expected[name])
        np.testing.assert_allclose(actual[name].x, expected[name].x.detach(), atol=1e-6)
    assert (actual["point"].name, actual["point"].scale) == ("point", 2.0)
    assert actual["frozen"].label == "frozen"
    assert type(actual["settings"]) is Settings and actual["settings"].note == "kept"
    assert type(actual["boxed"]) is Boxed
    np.testing.assert_array_equal(actual["settings"]["a"], actual["boxed"]["b"])


def test_vmap_over_outputs(net):
    jm = to_jax(net)
    apply = jax.vmap(lambda x: jm.apply(jm.params, {}, x)[0], out_axes=0)
    images = np.stack([X, 2 * X])
    _equal(apply(images)["output"], net(torch.from_numpy(images))["output"])


@pytest.mark.parametrize("make", [Point, FrozenPoint, lambda x: Output(y=x)])
def test_inputs_under_jit_and_grad(net, make):
    jm = to_jax(net)
    jm.apply(jm.params, {}, make(X), method="read")  # makes classes known that torch does not know
    grad = jax.jit(jax.grad(lambda c: jm.apply(jm.params, {}, c, method="read")[0]))
    x = torch.from_numpy(X).requires_grad_()
    net.read(make(x)).backward()
    container = grad(make(jnp.asarray(X)))
    actual = container.x if hasattr(container, "x") else container.y
    assert x.grad is not None
    np.testing.assert_allclose(actual, x.grad, atol=1e-6)


def test_a_cache_goes_in_and_out(net):
    jm = to_jax(net)
    empty = Cache()
    step = jax.jit(lambda p, x, cache: jm.apply(p, {}, x, cache, method="cached")[0])
    total, cache = jm.apply(jm.params, {}, X, empty, method="cached")[0]
    assert empty.layers[0].keys is None and empty.layers[0].count == 0
    assert type(cache) is Cache and cache.layers[0].count == 1
    total, cache = step(jm.params, X, cache)
    reference = Cache()
    for _ in range(2):
        expected, reference = net.cached(torch.from_numpy(X), reference)
    np.testing.assert_allclose(total, expected.detach(), rtol=1e-5)
    for layer, expected_layer in zip(cache.layers, reference.layers, strict=True):
        assert expected_layer.keys is not None
        np.testing.assert_allclose(layer.keys, expected_layer.keys.detach(), atol=1e-6)
        assert layer.count == expected_layer.count == 2


def test_what_cannot_be_taken_apart_is_named():
    class Locked:
        def __init__(self, x):
            self.x = x

        def __reduce_ex__(self, protocol):
            raise TypeError("cannot pickle 'Locked'")

    class Returns(nn.Module):
        def forward(self, x):
            return Locked(x)

    jm = to_jax(Returns())
    with pytest.raises(UnsupportedTorchError, match=r"Locked holds tensors.*use a tuple"):
        jm.apply({}, {}, X)


def test_model_outputs_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    tokens = np.arange(8).reshape(2, 4)
    expected = model(torch.from_numpy(tokens))
    jm = to_jax(model)
    actual = jax.jit(lambda p, b, x: jm.apply(p, b, x)[0])(jm.params, jm.buffers, tokens)
    assert type(actual) is type(expected)
    np.testing.assert_allclose(actual.logits, expected.logits.detach(), atol=1e-6)
    name = "cache" if "cache" in expected else "past_key_values"  # transformers 5.24 renamed it
    layer, expected_layer = actual[name].layers[0], expected[name].layers[0]
    np.testing.assert_allclose(layer.keys, expected_layer.keys.detach(), atol=1e-6)


def test_a_frozen_dictionary_stays_as_it_is():
    class Frozen(dict):
        def clear(self):
            raise RuntimeError("frozen")

    class Configured(nn.Module):
        def __init__(self):
            super().__init__()
            self.configuration = Frozen(scale=2.0)

        def forward(self, x):
            return x * self.configuration["scale"]

    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(to_jax(Configured()).apply({}, {}, x)[0], 2 * x)
