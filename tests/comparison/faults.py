"""Small networks of every family, and faults to plant into copies of them.

Every fault says where it is: the module, and the operations by which it may be called there. The
networks are small and their weights random, but no operation is hidden by a zero or a one.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.workload import LanguageWorkload, SingleWorkload, Workload
from jaxsr.models.registry import random_network


def _mshnet() -> nn.Module:
    from jaxsr.models.mshnet.config import MSHNetConfig
    from jaxsr.models.mshnet.network import MSHNet

    return MSHNet(MSHNetConfig(widths=(16, 16, 32), blocks=(1, 1, 1), attention_ratio=8))


def _fast_srgan() -> nn.Module:
    from jaxsr.models.fast_srgan.config import FastSRGANConfig
    from jaxsr.models.fast_srgan.generator import Generator

    return Generator(FastSRGANConfig(width=16, depth=3, scale=2))


def _span() -> nn.Module:
    from jaxsr.models.span.config import SpanConfig
    from jaxsr.models.span.generator import Span

    return Span(SpanConfig(width=12, depth=3, scale=2, expansion=None))


TORCH = BackendSpec(engine="torch", platform="cpu")
JAX = BackendSpec(engine="jax", platform="cpu")


def single(network: nn.Module, *inputs: np.ndarray, **fields: Any) -> SingleWorkload:
    """A network that runs once, in evaluation mode."""
    fields = {"family": type(network).__name__, "model": "test", "inputs_text": "noise"} | fields
    return SingleWorkload(network=network.eval(), inputs=(inputs, {}), **fields)


FAMILIES = ("mshnet", "fast-srgan", "span", "llama")


def make_workload(family: str, *, steps: int = 2, side_px: int = 24) -> Workload:
    """A small network of the family with fixed inputs."""
    if family == "llama":
        return LanguageWorkload(
            family=family,
            model="test",
            network=random_network("llama"),
            inputs_text="'Hello'",
            casts_buffers=False,
            prompt=tuple(b"Hello"),
            new_tokens=steps,
        )
    build = {"mshnet": _mshnet, "fast-srgan": _fast_srgan, "span": _span}[family]
    image = np.random.default_rng(3).uniform(-1, 1, (1, 3, side_px, side_px)).astype(np.float32)
    network = random_network(family, build=build)
    return single(network, image, family=family)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A mistake in one place."""

    name: str
    family: str
    plant: Callable[[nn.Module], None]
    """Changes the network in place."""
    path: str
    """Module where it is."""
    operations: tuple[str, ...]
    """Operations that a search may name there."""
    step: int = 0
    """First step that shows it."""

    def faulty(self, subject: Workload) -> Workload:
        """The subject with the fault in its network."""
        network = copy.deepcopy(subject.network)
        with torch.no_grad():
            self.plant(network)
        return replace(subject, network=network)


def _module(network: nn.Module, path: str) -> Any:
    return network.get_submodule(path)


def _wrap(module: nn.Module, forward: Callable) -> None:
    """Gives one module another `forward`, which gets the old one's class."""
    old = type(module)

    class Faulty(old):
        def forward(self, *args, **kwargs):
            return forward(super().forward, self, *args, **kwargs)

    module.__class__ = Faulty


def _scale(network: nn.Module) -> None:
    _module(network, "middle_layer.0.conv1").weight.mul_(1.001)


def _cast(network: nn.Module) -> None:
    def forward(old, self, x):
        return old(x).bfloat16().float()

    _wrap(_module(network, "stem.1.conv2"), forward)


def _eps(network: nn.Module) -> None:
    _module(network, "decoder_1.0.bn1").eps = 1e-4


def _rms_eps(network: nn.Module) -> None:
    _module(network, "model.layers.1.post_attention_layernorm").eps = 1e-4


def _head(network: nn.Module) -> None:
    weight = _module(network, "model.layers.1.self_attn.q_proj").weight
    heads = weight.view(4, 16, -1)
    weight.copy_(heads.transpose(0, 1).reshape(weight.shape))


def _statistic(network: nn.Module) -> None:
    _module(network, "encoder_1.0.bn2").running_mean.zero_()


def _residual(network: nn.Module) -> None:
    def forward(old, self, x):
        return self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))

    _wrap(_module(network, "stem.2"), forward)


def _padding(network: nn.Module) -> None:
    layer = _module(network, "blocks.1.c2_r")
    layer.padding_mode = "reflect"


def _channels(network: nn.Module) -> None:
    weight = _module(network, "neck.0").weight
    weight.copy_(weight.flip(1))


def _rope_base(network: nn.Module) -> None:
    from jaxsr.models.llama.network import inverse_frequencies

    config = replace(_module(network, "").config, rope_theta=9000.0)
    _module(network, "model.rotary_emb").inv_freq = inverse_frequencies(config)


def _position(network: nn.Module) -> None:
    def forward(old, self, positions):
        return old(positions + 1)

    _wrap(_module(network, "model.rotary_emb"), forward)


def _mask(network: nn.Module) -> None:
    def forward(old, self, x, places, cache):
        return old(x, places._replace(mask=places.mask.clamp(min=0)), cache)

    _wrap(_module(network, "model.layers.1.self_attn"), forward)


def _attention_scale(network: nn.Module) -> None:
    def forward(old, self, x):
        return old(x) * 1.01

    _wrap(_module(network, "model.layers.0.self_attn.q_proj"), forward)


def _activation(network: nn.Module) -> None:
    _module(network, "model.layers.2.mlp").act_fn = nn.GELU()


def _slot(network: nn.Module) -> None:
    def forward(old, self, tokens, cache=None, *, filled_B=None, first_B=None, read_B=None):
        late = None if filled_B is None else filled_B - 1
        return old(tokens, cache, filled_B=late, first_B=first_B, read_B=read_B)

    _wrap(network, forward)


def _shuffle(network: nn.Module) -> None:
    def forward(old, self, x: Tensor):
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, 2, channels // 4, height, width)
        return x.permute(0, 3, 4, 1, 5, 2).reshape(batch, channels // 4, 2 * height, 2 * width)

    _wrap(_module(network, "upsampling.0.phase_shift"), forward)


def _corners(network: nn.Module) -> None:
    from jaxsr.models.mshnet.canvas import Whole

    def forward(old, self, *args, **kwargs):
        enlarge = Whole.enlarge
        Whole.enlarge = lambda self, x, factor: (
            x if factor == 1 else F.interpolate(x, scale_factor=factor, mode="bilinear")
        )
        try:
            return old(*args, **kwargs)
        finally:
            Whole.enlarge = enlarge

    _wrap(network, forward)


def _slope(network: nn.Module) -> None:
    _module(network, "stem.0.relu1").weight.add_(1e-4)


FAULTS = (
    Fault(
        name="scale off by 1e-3", family="mshnet", plant=_scale,
        path="middle_layer.0.conv1", operations=("conv2d",),
    ),
    Fault(
        name="bfloat16 cast", family="fast-srgan", plant=_cast,
        path="stem.1.conv2", operations=("bfloat16",),
    ),
    Fault(
        name="wrong eps of BatchNorm", family="mshnet", plant=_eps,
        path="decoder_1.0.bn1", operations=("batch_norm",),
    ),
    Fault(
        name="wrong eps of RMSNorm", family="llama", plant=_rms_eps,
        path="model.layers.1.post_attention_layernorm", operations=("add",),
    ),
    Fault(
        name="transposed head", family="llama", plant=_head,
        path="model.layers.1.self_attn.q_proj", operations=("linear",),
    ),
    Fault(
        name="stale BatchNorm statistic", family="mshnet", plant=_statistic,
        path="encoder_1.0.bn2", operations=("batch_norm",),
    ),
    Fault(
        name="dropped residual", family="fast-srgan", plant=_residual,
        path="stem.2", operations=("add",),
    ),
    Fault(
        name="wrong padding mode", family="span", plant=_padding,
        path="blocks.1.c2_r", operations=("pad", "conv2d"),
    ),
    Fault(
        name="swapped channels", family="fast-srgan", plant=_channels,
        path="neck.0", operations=("conv2d",),
    ),
    Fault(
        name="wrong RoPE base", family="llama", plant=_rope_base,
        path="model.rotary_emb", operations=("mul",),
    ),
    Fault(
        name="off-by-one position", family="llama", plant=_position,
        path="model.rotary_emb", operations=("add",),
    ),
    Fault(
        name="ignored attention mask", family="llama", plant=_mask,
        path="model.layers.1.self_attn", operations=("clamp",),
    ),
    Fault(
        name="wrong attention scale", family="llama", plant=_attention_scale,
        path="model.layers.0.self_attn.q_proj", operations=("mul",),
    ),
    Fault(
        name="another activation", family="llama", plant=_activation,
        path="model.layers.2.mlp.act_fn", operations=("silu", "gelu"),
    ),
    Fault(
        name="cache slot off by one", family="llama", plant=_slot,
        path="", operations=("sub",), step=1,
    ),
    Fault(
        name="pixel shuffle in another order", family="fast-srgan", plant=_shuffle,
        path="upsampling.0.phase_shift", operations=("pixel_shuffle", "view"),
    ),
    Fault(
        name="interpolation without aligned corners", family="mshnet", plant=_corners,
        path="", operations=("interpolate",),
    ),
    Fault(
        name="slope off by 1e-4", family="fast-srgan", plant=_slope,
        path="stem.0.relu1", operations=("prelu",),
    ),
)  # fmt: skip
