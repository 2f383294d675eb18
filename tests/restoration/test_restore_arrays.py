"""Images of files as arrays, against OpenCV and Pillow."""

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import jaxsr

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_upright(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x112] = orientation
    path = tmp_path / "a.jpg"
    smooth = Image.fromarray(PIXELS[..., :3]).resize((40, 60), Image.Resampling.BICUBIC)
    smooth.save(path, exif=exif, quality=95)
    got = jaxsr.restore(path, torch.nn.Identity(), engine="torch")
    want = cv2.imread(str(path))
    assert want is not None and got.shape == want.shape
    assert np.abs(got - want[..., ::-1].astype(int)).max() <= 3  # two decoders


@pytest.mark.parametrize("ending", ["tif", "jpg"])
def test_cmyk_of_a_file_is_rgb(tmp_path, ending):
    image = Image.fromarray(PIXELS, "CMYK").resize((16, 24), Image.Resampling.NEAREST)
    image.save(tmp_path / f"a.{ending}")
    with Image.open(tmp_path / f"a.{ending}") as decoded:
        cmyk, want = np.asarray(decoded), np.asarray(decoded.convert("RGB")).astype(int)
        as_it_is = jaxsr.restore(decoded, torch.nn.Identity(), engine="torch")
    got = jaxsr.restore(tmp_path / f"a.{ending}", torch.nn.Identity(), engine="torch")
    assert np.abs(got - want).max() <= 1  # Pillow rounds in between
    np.testing.assert_array_equal(as_it_is, cmyk)


@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_networks_of_another_precision_run_in_float32(dtype, engine):
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 12, 3, padding=1), torch.nn.PixelShuffle(2)
    ).to(dtype)
    photo = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    restored = jaxsr.restore(photo, network, engine=engine)
    exact = network.double()(torch.from_numpy(photo / 255).permute(2, 0, 1)[None])[0]
    levels = (exact.detach().permute(1, 2, 0).numpy().clip(0, 1) * 255).round()
    assert np.abs(restored - levels).max() <= 1
    assert next(network.parameters()).dtype == torch.float64
