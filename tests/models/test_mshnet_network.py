"""MSHNet's size, names and shapes against the publication, and its checkpoints' wrappings."""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from jaxsr.models.load import load_model
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import ChannelAttention, MSHNet
from jaxsr.training.mshnet import MSHNetObjective
from jaxsr.training.presets.mshnet import PAPER, TOOLBOX

THIN = MSHNetConfig(widths=(4, 6, 8), blocks=(1, 2, 1), attention_ratio=2)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return MSHNet().eval()


def test_parameters_and_arithmetic_are_the_publications(network):
    assert sum(p.numel() for p in network.parameters()) == 4_065_513
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, 3, 256, 256))
    assert counter.get_total_flops() / 2e9 == pytest.approx(6.00, abs=0.005)


def test_names_are_those_of_published_checkpoints(network):
    names = list(network.state_dict())
    block = (
        r"(conv[12]\.(weight|bias)|bn[12]\.\w+|ca\.fc[12]\.weight|sa\.conv1\.weight"
        r"|shortcut\.(0\.(weight|bias)|1\.\w+))"
    )
    known = re.compile(
        rf"(conv_init|output_[0-3]|final)\.(weight|bias)"
        rf"|(encoder_[0-3]|middle_layer|decoder_[0-3])\.[01]\.{block}"
    )
    assert [name for name in names if not known.fullmatch(name)] == []
    for name in (
        "encoder_0.0.conv1.weight",
        "encoder_1.0.shortcut.1.running_var",
        "middle_layer.1.sa.conv1.weight",
        "decoder_0.0.ca.fc1.weight",
        "final.weight",
    ):
        assert name in names
    assert "encoder_0.0.shortcut.0.weight" not in names  # 16 to 16: the identity
    assert "encoder_0.1.conv1.weight" not in names and "decoder_0.1.conv1.weight" not in names
    assert network.encoder_2[0].ca.fc1.weight.shape == (4, 64, 1, 1)
    assert network.encoder_0[0].sa.conv1.weight.shape == (1, 2, 7, 7)


@pytest.mark.parametrize("size", [(32, 48), (64, 16)])
def test_heads_have_their_sizes(network, size):
    image = torch.randn(2, 3, *size)
    height, width = size
    with torch.no_grad():
        final, *heads = network(image, "all")
        assert final.shape == (2, 1, height, width)
        assert [tuple(h.shape[2:]) for h in heads] == [(height >> k, width >> k) for k in range(4)]
        torch.testing.assert_close(network(image), final)
        torch.testing.assert_close(network(image, "warmup"), heads[0])


def test_the_final_output_is_of_the_heads_enlarged_with_corners_aligned(network):
    image = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        final, *heads = network(image, "all")
        sized = [
            nn.UpsamplingBilinear2d(scale_factor=2**k)(head) if k else head
            for k, head in enumerate(heads)
        ]
        torch.testing.assert_close(network.final(torch.cat(sized, 1)), final)


def test_channel_attention_equals_pooling_by_torch():
    torch.manual_seed(1)
    attention, x = ChannelAttention(32, ratio=16), torch.randn(2, 32, 5, 7)

    def mlp(pooled):
        return attention.fc2(attention.fc1(pooled).relu())

    want = torch.sigmoid(mlp(F.adaptive_avg_pool2d(x, 1)) + mlp(F.adaptive_max_pool2d(x, 1)))
    torch.testing.assert_close(attention(x), want)


@pytest.mark.parametrize(
    ("shape", "heads", "said"),
    [
        ((1, 1, 32, 32), "final", "repeat a gray image"),
        ((1, 3, 40, 32), "final", "multiples of 16"),
        ((1, 3, 32, 32), "first", "heads must be"),
    ],
)
def test_wrong_input_is_named(network, shape, heads, said):
    with pytest.raises(ValueError, match=said):
        network(torch.zeros(shape), heads)


@pytest.mark.parametrize("wrapping", ["bare", "state_dict", "net", "module", "net and module"])
def test_published_wrappings_load(tmp_path, wrapping):
    torch.manual_seed(2)
    network = MSHNet(THIN).eval()
    weights: dict[str, Any] = dict(network.state_dict())
    if "module" in wrapping:
        weights = {f"module.{name}": value for name, value in weights.items()}
    if wrapping.startswith(("state_dict", "net")):
        weights = {wrapping.split()[0]: weights, "epoch": 7, "iou": 0.67}
    path = tmp_path / "weights.pth"
    torch.save(weights, path)
    loaded = load_model(path, kind="detector").network
    image = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(loaded(image), network(image), rtol=0, atol=0)
    assert loaded.config.widths == THIN.widths and loaded.config.blocks == THIN.blocks
    assert loaded.config.attention_ratio == 2


@pytest.mark.parametrize("prefix", ["", "network."])
def test_own_safetensors_load(tmp_path, prefix):
    network = MSHNet(THIN).eval()
    path = tmp_path / "network.safetensors"
    save_file({prefix + name: value for name, value in network.state_dict().items()}, path)
    image = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(
        load_model(path, kind="detector").network(image), network(image), rtol=0, atol=0
    )


def test_weights_of_something_else_are_refused(tmp_path):
    path = tmp_path / "other.pth"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(ValueError, match="of no family that jaxsr knows"):
        load_model(path, kind="detector")


def test_presets_hold_what_the_publications_say():
    assert PAPER.model.loss == "paper" and TOOLBOX.model.loss == "corrected"
    assert (PAPER.optimizer, PAPER.lr, PAPER.schedule) == ("adagrad", 0.05, "constant")
    assert (PAPER.batch, PAPER.epochs, PAPER.warmup_epochs) == (4, 400, 5)
    assert (PAPER.base_size, PAPER.crop_size, PAPER.augment) == (256, 256, "scale")
    assert (PAPER.normalise, PAPER.evaluate) == ("imagenet", "base")
    assert (TOOLBOX.optimizer, TOOLBOX.lr, TOOLBOX.batch) == ("adam", 5e-4, 16)
    assert (TOOLBOX.epochs, TOOLBOX.crop_size, TOOLBOX.evaluate) == (400, 256, "native")
    assert (TOOLBOX.augment, TOOLBOX.normalise, TOOLBOX.schedule) == (
        "patch",
        "dataset",
        "constant",
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"widths": (16,), "blocks": (1,)}, "widths and blocks"),
        ({"widths": (16, 32)}, "widths and blocks"),
        ({"blocks": (1, 2, 0, 2, 2)}, "blocks"),
        ({"attention_ratio": 17}, "attention_ratio"),
        ({"channels": 0}, "channels"),
        ({"loss": "sls"}, "loss"),
    ],
)
def test_configurations_that_cannot_be_are_refused(options: Any, said):
    with pytest.raises(ValueError, match=said):
        MSHNetConfig(**options)


def test_objective_moves_only_what_its_phase_trains():
    torch.manual_seed(3)
    objective = MSHNetObjective(THIN)
    batch = {"image": torch.randn(2, 3, 16, 16), "mask": torch.zeros(2, 1, 16, 16)}
    batch["mask"][..., 4:6, 5:7] = 1
    loss, _ = objective.warmup_loss(objective.share_warmup(batch), batch)
    loss.backward()
    idle = {name for name, p in objective.named_parameters() if p.grad is None}
    assert idle == {"network.output_1.weight", "network.output_1.bias",
                    "network.final.weight", "network.final.bias"}  # fmt: skip
    loss, metrics = objective.main_loss(objective.share(batch), batch)
    assert set(metrics) == {"scale", "location"}
    torch.testing.assert_close(metrics["scale"] + metrics["location"], loss)
    loss.backward()
    assert all(p.grad is not None for p in objective.parameters())
