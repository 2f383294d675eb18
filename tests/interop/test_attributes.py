"""Attributes that forward writes: caches of weights go through, state is refused."""

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


class Attention(nn.Module):
    """Keeps its table of biases for inference, as LeViT and TinyViT of timm do."""

    def __init__(self):
        super().__init__()
        self.biases = nn.Parameter(torch.randn(2, 5))
        self.index: torch.Tensor
        self.register_buffer("index", torch.tensor([[0, 1, 2], [1, 0, 3], [4, 2, 1]]))
        self.table = {}

    @torch.no_grad()
    def train(self, mode=True):
        super().train(mode)
        if mode and self.table:
            self.table = {}
        return self

    def bias(self, device):
        if self.training:
            return self.biases[:, self.index]
        key = str(device)
        if key not in self.table:
            self.table[key] = self.biases[:, self.index]
        return self.table[key]

    def forward(self, x):
        scores = x @ x.mT
        return (scores[:, None] + self.bias(x.device)).softmax(-1) @ x[:, None]


class Rotary(nn.Module):
    """Keeps its table in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.angles = None

    def forward(self, x):
        if self.angles is None or self.angles.shape[0] < x.shape[1]:
            places = torch.arange(x.shape[1])
            table = torch.zeros(x.shape[1], 4)
            table += places[:, None] * self.scale
            self.angles = table
        return x * self.angles.cos()


def _gradients(module, train):
    module = module.train(train)
    jm = to_jax(module)

    def loss(params, x):
        return (jm.apply(params, jm.buffers, x, train=train)[0] ** 2).sum()

    actual, gradients = jax.jit(jax.value_and_grad(loss))(jm.params, X)
    expected = (module(torch.from_numpy(X)) ** 2).sum()
    expected.backward()
    np.testing.assert_allclose(actual, expected.detach(), rtol=1e-5)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("make", [Attention, Rotary])
def test_a_cache_of_weights_is_computed_in_each_trace(make, train):
    torch.manual_seed(0)
    _gradients(make(), train)


def test_a_cache_leaves_nothing_behind():
    jm = to_jax(Attention())
    for shape in (X[:1], X):
        jm.apply(jm.params, jm.buffers, shape)
    assert jm.functional.module.table == {}
    moved = {name: p + 1.0 * jnp.arange(5) for name, p in jm.params.items()}
    before, after = (jm.apply(p, jm.buffers, X)[0] for p in (jm.params, moved))
    assert np.abs(before - after).max() > 0.01


def test_a_cache_filled_before_the_conversion_follows_the_weights():
    torch.manual_seed(0)
    module = Attention().eval()
    x = torch.from_numpy(X)
    with torch.no_grad():
        module(x)
        jm = to_jax(module)
        moved = module.biases + torch.arange(5.0)
        actual = jm.apply({"biases": moved.numpy()}, jm.buffers, X)[0]
        module.biases.copy_(moved)
        np.testing.assert_allclose(actual, module.train().eval()(x), atol=1e-6)
    assert not module.training


class Keeps(nn.Module):
    """Adds what an earlier call left in an attribute, a container, or a closure."""

    def __init__(self, kind):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.previous, self.kind, self.log, self.maps = torch.zeros(4), kind, [], {}
        closure = {}
        self.swap = lambda x: (closure.get("x", x), closure.update(x=x))[0]

    def forward(self, x):
        if self.kind == "attribute":
            earlier, self.previous = self.previous, self.weight * 2
        elif self.kind == "first":
            self.log.append(x.sum())
            earlier = self.log[0]
        elif self.kind == "last but one":
            self.log.append(x.sum())
            earlier = self.log[-2] if len(self.log) > 1 else self.log[-1]
        elif self.kind == "random":
            self.log.append(torch.rand(4) * self.weight)
            earlier = self.log[0]
        elif self.kind == "entry":
            earlier = self.maps.setdefault("x", x)
            self.maps["x"] = x
        else:
            earlier = self.swap(x)
        return x + earlier


@pytest.mark.parametrize(
    "kind", ["attribute", "first", "last but one", "random", "entry", "closure"]
)
@pytest.mark.filterwarnings("ignore::jaxsr.interop._core.attributes.LostTensorWarning")
def test_state_of_an_earlier_call_is_refused(kind):
    jm = to_jax(Keeps(kind))
    places = r"`(self\.log\[\d\]|previous|self\.maps\['x'\]|closure in .*\['x'\])`"
    with pytest.raises(UnsupportedTorchError, match=rf"forward keeps a tensor in {places}"):
        for _ in range(2):
            jm.apply(jm.params, jm.buffers, X, rng=jax.random.key(0))
    assert jm.functional.module.log == []


class Features(nn.Module):
    """Collects maps of its layers by hooks, as losses on features do."""

    def __init__(self, container, *, returns):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.maps, self.returns = container, returns
        for name, layer in self.body.named_children():
            layer.register_forward_hook(self.hook(name))

    def hook(self, name):
        def keep(layer, inputs, output):
            if isinstance(self.maps, dict):
                self.maps[name] = output
            else:
                self.maps.append(output)

        return keep

    def forward(self, x):
        if self.returns == "afresh":
            self.maps.clear()
        y = self.body(x)
        if self.returns == "nothing":
            return y
        places = ("0", "2") if isinstance(self.maps, dict) else (-3, -1)
        return [self.maps[which].sin() for which in places]


@pytest.mark.parametrize("container", [dict, list])
@pytest.mark.parametrize("returns", ["maps", "afresh"])
def test_maps_that_hooks_put_into_a_container_are_of_the_call(container, returns):
    torch.manual_seed(0)
    module = Features(container(), returns=returns)
    jm = to_jax(module)
    for i in range(3):
        x = X * (i + 1)
        with torch.no_grad():
            expected = module(torch.from_numpy(x))
        for actual, one in zip(jm.apply(jm.params, jm.buffers, x)[0], expected, strict=True):
            np.testing.assert_allclose(actual, one, atol=1e-6)
    assert not jm.functional.module.maps


def test_a_tensor_left_in_a_container_is_named_once():
    jm = to_jax(Features({}, returns="nothing"))
    with pytest.warns(match=r"forward keeps a tensor in `maps` at .*where it is lost") as seen:
        for _ in range(2):
            jm.apply(jm.params, jm.buffers, X)
    assert len(seen) == 1


class Pyramid(nn.Module):
    """Keeps maps of its input where its other method reads them, as RAFT of torchvision does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.levels: Any = None

    def build(self, x):
        self.levels = [x]
        for _ in range(2):
            self.levels.append(self.levels[-1] * 2 + x.mean())

    def forward(self, x):
        self.build(self.linear(x))
        return sum(level.sin() for level in self.levels)


def test_tensors_that_each_call_writes_first_are_no_state():
    torch.manual_seed(0)
    for train in (False, True):
        _gradients(Pyramid(), train)
    jm = to_jax(Pyramid())
    jm.apply(jm.params, jm.buffers, X)
    assert jm.functional.module.levels is None and type(jm.functional.module) is Pyramid


class Watched(nn.Module):
    """Leaves its weights of attention for whoever looks at them afterwards."""

    def __init__(self, remembers=False):
        super().__init__()
        self.linear, self.attention, self.remembers = nn.Linear(4, 3), None, remembers

    def forward(self, x):
        if self.remembers and self.attention is not None:
            x = x + self.attention.mean()
        self.attention = self.linear(x).softmax(-1)
        return x * 2


def test_a_tensor_left_in_an_attribute_is_named_once():
    jm = to_jax(Watched())
    with pytest.warns(match=r"forward keeps a tensor in `attention` at .*where it is lost") as seen:
        for _ in range(2):
            actual = jm.apply(jm.params, jm.buffers, X)[0]
    assert len(seen) == 1
    np.testing.assert_array_equal(actual, X * 2)


def test_a_tensor_that_the_next_call_reads_is_refused():
    jm = to_jax(Watched(remembers=True))
    for _ in range(2):
        with pytest.raises(
            UnsupportedTorchError, match=r"keeps a tensor in `attention`.*next call"
        ):
            jm.apply(jm.params, jm.buffers, X)


class Reparameterised(nn.Module):
    """Writes its joined weights into a frozen convolution, as the SPAN of NTIRE does."""

    def __init__(self):
        super().__init__()
        self.conv, self.skip = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.joined = nn.Linear(4, 4).requires_grad_(False)

    def join(self):
        self.weight_concat = self.conv.weight.data.clone().detach() + self.skip.weight.data
        self.joined.weight.data = self.weight_concat
        self.joined.bias.data = self.conv.bias.data

    def forward(self, x):
        if self.training:
            return self.conv(x) + self.skip(x)
        self.join()
        return self.joined(x)


@pytest.mark.parametrize("train", [False, True])
def test_writes_into_frozen_parameters_are_buffers_that_apply_returns(train):
    torch.manual_seed(0)
    module = Reparameterised().train(train)
    jm = to_jax(module)
    actual, buffers = jax.jit(lambda p, b, x: jm.apply(p, b, x, train=train))(
        jm.params, jm.buffers, X
    )
    expected = module(torch.from_numpy(X))
    np.testing.assert_allclose(actual, expected.detach(), atol=1e-6)
    np.testing.assert_allclose(buffers["joined.weight"], module.joined.weight, atol=1e-6)
    np.testing.assert_allclose(buffers["joined.bias"], module.joined.bias, atol=1e-6)


class Rescales(nn.Module):
    """Halves a weight in place, as RWKV does before inference."""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            self.output.weight.div_(2)
        return self.output(x)


def test_a_write_into_a_trained_parameter_is_refused_by_name():
    jm = to_jax(Rescales())
    text = r"the parameter output\.weight.*requires_grad_\(False\)"
    with pytest.raises(UnsupportedTorchError, match=text):
        jm.apply(jm.params, jm.buffers, X)
    module = Rescales()
    module.output.weight.requires_grad_(False)
    jm = to_jax(module)
    actual, buffers = jm.apply(jm.params, jm.buffers, X)
    expected = module(torch.from_numpy(X))
    np.testing.assert_allclose(actual, expected.detach(), atol=1e-6)
    np.testing.assert_array_equal(buffers["output.weight"], module.output.weight)


class Sized(nn.Module):
    """Writes the height of its input where its other methods read it, as CRAFT does."""

    def __init__(self, reads_first=False):
        super().__init__()
        self.linear, self.height, self.reads_first = nn.Linear(4, 4), None, reads_first

    def scale(self, x):
        return x / self.height

    def forward(self, x):
        if self.reads_first and self.height is not None:
            x = x + self.height
        self.height, self.width = x.shape[-2:]
        return self.scale(self.linear(x))


def test_a_number_that_each_call_writes_first_is_no_state():
    torch.manual_seed(0)
    module = Sized()
    jm = to_jax(module)
    apply = jax.jit(lambda x: jm.apply(jm.params, jm.buffers, x)[0])
    for x in (X, X[:, :2]):
        np.testing.assert_allclose(apply(x), module(torch.from_numpy(x)).detach(), atol=1e-6)
    assert jm.functional.module.height is None and type(jm.functional.module) is Sized


class SizedInTraining(Sized):
    def forward(self, x):
        if self.training:
            self.height = x.shape[-2]
        return x if self.height is None else self.scale(self.linear(x))


def test_a_cached_property_is_no_state():
    class Padded(nn.Conv1d):
        @cached_property
        def left(self) -> int:
            return self.kernel_size[0] - 1

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(nn.functional.pad(input, (self.left, 0)))

    module = Padded(3, 2, 3)
    model = to_jax(module)
    for _ in range(2):
        y, _ = jax.jit(model.apply)(model.params, model.buffers, X)
        np.testing.assert_allclose(y, module(torch.from_numpy(X)).detach(), atol=1e-6)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("make", [lambda: Sized(reads_first=True), SizedInTraining])
def test_a_number_read_before_it_is_written_is_refused(make, first):
    jm = to_jax(make())
    with pytest.raises(UnsupportedTorchError, match=r"forward changes `height`.* None to 3 at .*="):
        for train in (first, not first):
            jm.apply(jm.params, jm.buffers, X, train=train)


def test_weights_that_a_hook_computes_anew_in_both_modes():
    """Old-style spectral_norm replaces the tensor in its attribute before it is read."""
    torch.manual_seed(0)
    module = nn.utils.spectral_norm(nn.Linear(4, 3))
    jm, buffers = to_jax(module), None
    for train in (False, True, True, False):
        actual, buffers = jm.apply(jm.params, buffers or jm.buffers, X, train=train)
        expected = module.train(train)(torch.from_numpy(X))
        np.testing.assert_allclose(actual, expected.detach(), atol=1e-5)


class Doubled(nn.Module):
    """Its layer's forward is a closure over the layer that is copied."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        forward = self.layer.forward
        self.layer.forward = lambda x: 2 * forward(x)

    def forward(self, x):
        return self.layer(x)


def test_parameters_of_the_module_before_its_copy_are_refused():
    """They would be constants, which no training moves."""
    jm = to_jax(Doubled())
    with pytest.raises(UnsupportedTorchError, match=r"reads layer\.weight .* closure"):
        jm.apply(jm.params, jm.buffers, X)


class Places(nn.Module):
    """Keeps constants of the last size in a buffer, as timm's ConViT does."""

    def __init__(self, *, persistent: bool = False, from_input: bool = False) -> None:
        super().__init__()
        self.register_buffer("places", torch.zeros(1), persistent=persistent)
        self.from_input = from_input

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.get_buffer("places").shape[0] != x.shape[-1]:
            self.places = x[0].detach() if self.from_input else torch.arange(x.shape[-1]) / 2
        return x * self.get_buffer("places")


def test_a_cache_of_constants_may_take_the_size_of_the_input():
    model = to_jax(Places())
    for size in (3, 5):
        x = torch.randn(2, size)
        outputs, buffers = jax.jit(model.apply)(model.params, model.buffers, x.numpy())
        np.testing.assert_array_equal(outputs, Places()(x))
        assert buffers["places"].shape == (1,)


@pytest.mark.parametrize("options", [{"persistent": True}, {"from_input": True}])
def test_another_size_of_a_buffer_that_is_kept_is_refused(options):
    model = to_jax(Places(**options))
    with pytest.raises(UnsupportedTorchError, match=r"buffer places of shape \(1,\) by \(3,\)"):
        model.apply(model.params, model.buffers, np.ones((2, 3), np.float32))
