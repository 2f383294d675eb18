"""Published layouts of spandrel's architectures, told apart by their weights; skips without it."""

import re

import numpy as np
import pytest
import torch

from jaxsr.errors import InputError
from jaxsr.models.build import build_network
from jaxsr.models.libraries import import_library
from jaxsr.models.load import load_model
from jaxsr.restoration.models import find_model
from jaxsr.restore import main, restore
from tests.oracles.restorers import published

try:
    spandrel = import_library("spandrel")
except InputError as error:
    pytest.skip(f"spandrel is not usable here: {error}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:torch.meshgrid")

EXACT = {"Compact", "RRDBNet", "RRDBNet x2", "SPAN", "SwinIR-M", "DRUNet", "FDnCNN", "DnCNN"}
NAMES = sorted(EXACT | {"RCAN", "HAT", "DAT"})


def network(name):
    return published(name, small=True)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    def save(name):
        path = tmp_path_factory.mktemp("weights") / "published.pth"
        torch.save({"params_ema": network(name).state_dict()}, path)
        return path

    return save


def by_spandrel(path, image):
    descriptor = spandrel.ModelLoader("cpu").load_from_file(path)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    return descriptor(planes)[0].permute(1, 2, 0).numpy() * 255


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "torch") for name in NAMES),
        *((name, "jax") for name in ("Compact", "SPAN", "RRDBNet x2", "DRUNet", "FDnCNN")),
        *(
            pytest.param(name, "jax", marks=pytest.mark.slow)
            for name in ("RCAN", "SwinIR-M", "HAT")
        ),
    ],
)
def test_a_published_layout_restores_as_spandrel_itself(weights, name, engine):
    path = weights(name)
    image = np.random.default_rng(0).integers(0, 256, (24, 19, 3), np.uint8)
    # A value between two levels may be rounded either way.
    restored = restore(image, str(path), engine=engine)
    assert np.abs(restored - by_spandrel(path, image)).max() <= 0.505


@pytest.mark.parametrize(
    ("name", "first", "far"),
    [
        ("RRDBNet", r"model\.1\.sub\.0\.", "model.1.sub.100000000."),
        ("SwinIR-M", r"(layers\.0\.residual_group\.blocks)\.0\.", r"\1.99999999."),
    ],
)
def test_a_name_with_a_large_number_builds_no_such_network(tmp_path, name, first, far):
    state = network(name).state_dict()
    more = {re.sub(first, far, key): value for key, value in state.items() if re.match(first, key)}
    assert more
    torch.save(state | more, tmp_path / "w.pth")
    with pytest.raises(InputError, match="claims a network that takes far more memory to build"):
        load_model(tmp_path / "w.pth")


@pytest.mark.parametrize("name", sorted(EXACT))
def test_tiles_change_nothing(weights, name):
    path = weights(name)
    image = np.random.default_rng(0).integers(0, 256, (240, 96, 3), np.uint8)
    reach = find_model(str(path)).reach
    assert reach.margin is not None and 2 * reach.margin + reach.period < 240
    tiled = restore(image, str(path), tile=8, engine="torch")
    assert np.abs(tiled - by_spandrel(path, image)).max() <= 0.505


@pytest.mark.parametrize("name", sorted({*NAMES} - EXACT))
def test_what_sees_the_whole_picture_is_named(weights, name, tmp_path, capsys):
    from PIL import Image

    path = weights(name)
    reach = find_model(str(path)).reach
    assert reach.margin is None and "depends on the whole image" in reach.cause
    Image.new("RGB", (40, 24)).save(tmp_path / "a.png")
    words = [str(tmp_path / "a.png"), "--out", str(tmp_path / "out"), "--engine", "torch"]
    assert main([*words, "--model", str(path)]) == 0
    assert "no exact tiles" in capsys.readouterr().out


def test_a_tile_smaller_than_the_margins_is_raised(weights, tmp_path, capsys):
    from PIL import Image

    Image.new("RGB", (40, 24)).save(tmp_path / "a.png")
    words = [str(tmp_path / "a.png"), "--out", str(tmp_path / "out"), "--engine", "torch"]
    assert main([*words, "--model", str(weights("RRDBNet")), "--tile", "8"]) == 0
    assert "take the place of --tile 8" in capsys.readouterr().out


REAL_ESRGAN = ("conv_first", r"body.\1.rdb\2.conv\3", "conv_body", "conv_up", "conv_hr")
BSRGAN = ("conv_first", r"RRDB_trunk.\1.RDB\2.conv\3", "trunk_conv", "upconv", "HRconv")


@pytest.mark.parametrize(
    ("first", "dense", "body", "up", "high"), [REAL_ESRGAN, BSRGAN], ids=["Real-ESRGAN", "BSRGAN"]
)
def test_all_names_of_esrgan_are_one_network(tmp_path, first, dense, body, up, high):
    old = network("RRDBNet").eval()
    names = {r"0": first, r"1\.sub\.(\d+)\.RDB(\d)\.conv(\d)\.0": dense, r"1\.sub\.1": body,
             "3": f"{up}1", "6": f"{up}2", "8": high, "10": "conv_last"}  # fmt: skip
    state = {}
    for key, value in old.state_dict().items():
        layer, _, kind = key.removeprefix("model.").rpartition(".")
        (pattern,) = (pattern for pattern in names if re.fullmatch(pattern, layer))
        state[f"{re.sub(pattern, names[pattern], layer)}.{kind}"] = value
    torch.save({"params": state, "params_ema": state}, tmp_path / "w.pth")
    image = torch.rand(1, 3, 9, 8)
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "w.pth").network(image), old(image))


def test_families_of_jaxsr_do_not_claim_weights_of_another_layout(weights):
    assert load_model(weights("SPAN")).family == "SPAN"  # spandrel's, not jaxsr's span


def test_other_numbers_of_channels_are_refused(tmp_path):
    place = "spandrel.architectures.Compact.__arch.SRVGG:SRVGGNetCompact"
    sizes = {"num_feat": 8, "num_conv": 2, "upscale": 1}
    torch.save(build_network(place, {**sizes, "num_in_ch": 1, "num_out_ch": 3}).state_dict(),
               tmp_path / "w.pth")  # fmt: skip
    with pytest.raises(InputError, match=r"takes 1 channels and returns 3"):
        load_model(tmp_path / "w.pth")


def test_not_finite_weights_are_refused(weights, tmp_path):
    state = torch.load(weights("Compact"))["params_ema"]
    state["body.0.weight"][0, 0, 0, 0] = torch.nan
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"NaN or infinity in body\.0\.weight"):
        load_model(tmp_path / "w.pth")


def test_a_mask_and_squares_are_refused_by_name(monkeypatch, tmp_path):
    torch.save(network("Compact").state_dict(), tmp_path / "w.pth")
    real = spandrel.ModelLoader.load_from_state_dict

    def square(self, state):
        descriptor = real(self, state)
        descriptor.size_requirements.square = True
        return descriptor

    monkeypatch.setattr(spandrel.ModelLoader, "load_from_state_dict", square)
    with pytest.raises(InputError, match=r"Compact.*only square images"):
        load_model(tmp_path / "w.pth")
    monkeypatch.setattr(spandrel, "ImageModelDescriptor", spandrel.MaskedImageModelDescriptor)
    with pytest.raises(InputError, match=r"Compact.*fills a mask"):
        load_model(tmp_path / "w.pth")


def test_an_unknown_architecture_is_named_beside_the_known():
    with pytest.raises(
        InputError, match=r"no architecture 'Nope'; there are ATD, .*SwinIR, Uformer$"
    ):
        build_network("spandrel:Nope")
