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

try:
    spandrel = import_library("spandrel")
except InputError as error:
    pytest.skip(f"spandrel is not usable here: {error}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:torch.meshgrid")

SWIN = {"img_size": 16, "embed_dim": 12, "depths": [2], "num_heads": [2], "mlp_ratio": 2,
        "resi_connection": "1conv"}  # fmt: skip
NETWORKS = {
    "Compact": ("Compact.__arch.SRVGG:SRVGGNetCompact",
                {"num_feat": 16, "num_conv": 4, "upscale": 2}),
    "ESRGAN": ("ESRGAN.__arch.RRDB:RRDBNet",
               {"in_nc": 3, "out_nc": 3, "num_filters": 16, "num_blocks": 1, "scale": 4}),
    "Real-ESRGAN x2": ("ESRGAN.__arch.RRDB:RRDBNet",
                       {"in_nc": 12, "out_nc": 3, "num_filters": 16, "num_blocks": 1, "scale": 4,
                        "shuffle_factor": 2}),
    "SPAN": ("SPAN.__arch.span:SPAN",
             {"num_in_ch": 3, "num_out_ch": 3, "feature_channels": 16, "upscale": 2}),
    "RCAN": ("RCAN.__arch.rcan_arch:RCAN",
             {"scale": 2, "n_resgroups": 1, "n_resblocks": 1, "n_feats": 16, "reduction": 4}),
    "SwinIR": ("SwinIR.__arch.SwinIR:SwinIR",
               {**SWIN, "upscale": 2, "window_size": 8, "upsampler": "pixelshuffledirect"}),
    "HAT": ("HAT.__arch.HAT:HAT",
            {**SWIN, "upscale": 2, "in_chans": 3, "window_size": 8, "compress_ratio": 3,
             "squeeze_factor": 3, "upsampler": "pixelshuffle"}),
    "DAT": ("DAT.__arch.DAT:DAT",
            {"upscale": 2, "in_chans": 3, "img_size": 16, "split_size": [8, 8], "depth": [2],
             "embed_dim": 32, "num_heads": [2], "expansion_factor": 2,
             "resi_connection": "1conv"}),
    "DRUNet": ("DRUNet.__arch.network_unet:DRUNet",
               {"in_nc": 4, "out_nc": 3, "nc": [8, 8, 8, 8], "nb": 2}),
    "FDnCNN": ("DnCNN.__arch.network_dncnn:DnCNN",
               {"in_nc": 4, "out_nc": 3, "nc": 16, "nb": 9, "act_mode": "R", "mode": "FDnCNN"}),
    "DnCNN": ("DnCNN.__arch.network_dncnn:DnCNN", {"in_nc": 3, "out_nc": 3, "nc": 16, "nb": 4}),
}  # fmt: skip
EXACT = {"Compact", "ESRGAN", "Real-ESRGAN x2", "SPAN", "SwinIR", "DRUNet", "FDnCNN", "DnCNN"}


def network(name):
    place, options = NETWORKS[name]
    torch.manual_seed(0)
    return build_network(f"spandrel.architectures.{place}", options)


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
        *((name, "torch") for name in NETWORKS),
        *((name, "jax") for name in ("Compact", "SPAN", "Real-ESRGAN x2", "DRUNet", "FDnCNN")),
        *(pytest.param(name, "jax", marks=pytest.mark.slow) for name in ("RCAN", "SwinIR", "HAT")),
    ],
)
def test_a_published_layout_restores_as_spandrel_itself(weights, name, engine):
    path = weights(name)
    image = np.random.default_rng(0).integers(0, 256, (24, 19, 3), np.uint8)
    # A value between two levels may be rounded either way.
    restored = restore(image, str(path), engine=engine)
    assert np.abs(restored - by_spandrel(path, image)).max() <= 0.505


@pytest.mark.parametrize("name", sorted(EXACT))
def test_tiles_change_nothing(weights, name):
    path = weights(name)
    image = np.random.default_rng(0).integers(0, 256, (240, 96, 3), np.uint8)
    reach = find_model(str(path)).reach
    assert reach.margin is not None and 2 * reach.margin + reach.period < 240
    tiled = restore(image, str(path), tile=8, engine="torch")
    assert np.abs(tiled - by_spandrel(path, image)).max() <= 0.505


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - EXACT))
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
    assert main([*words, "--model", str(weights("ESRGAN")), "--tile", "8"]) == 0
    assert "take the place of --tile 8" in capsys.readouterr().out


REAL_ESRGAN = ("conv_first", r"body.\1.rdb\2.conv\3", "conv_body", "conv_up", "conv_hr")
BSRGAN = ("conv_first", r"RRDB_trunk.\1.RDB\2.conv\3", "trunk_conv", "upconv", "HRconv")


@pytest.mark.parametrize(
    ("first", "dense", "body", "up", "high"), [REAL_ESRGAN, BSRGAN], ids=["Real-ESRGAN", "BSRGAN"]
)
def test_all_names_of_esrgan_are_one_network(tmp_path, first, dense, body, up, high):
    old = network("ESRGAN").eval()
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
