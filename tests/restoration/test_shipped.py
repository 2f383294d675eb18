"""The weights that come with jaxsr: small, described, equal in JAX and torch, better than bicubic.

PSNR is scikit-image's, on MATLAB's Y of 8-bit pictures, 4 pixels cut from each border.
"""

import io
from importlib import resources
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio

from jaxsr import restore
from jaxsr.data.built_in_photos import BUILT_IN_VALIDATION
from jaxsr.data.photos import open_training_photos
from jaxsr.interop.weights import read_weights
from jaxsr.models.span.config import SpanConfig
from jaxsr.models.weight_sources import SHIPPED
from jaxsr.ops import resize
from jaxsr.restoration.models import find_model

PATH = Path(str(resources.files("jaxsr").joinpath("weights", SHIPPED["clean"])))


@pytest.fixture(scope="module")
def notes() -> dict:
    return read_weights(PATH)[1]


def test_the_file_is_small_and_says_what_it_is(notes):
    assert PATH.stat().st_size <= 3_000_000
    assert notes["family"] == "span"
    model = find_model()
    assert (model.scale, model.channels, model.value_range) == (4, 3, (-1.0, 1.0))
    config = model.network.config
    assert isinstance(config, SpanConfig)
    assert model.reach.margin is not None
    assert model.reach.margin <= config.receptive_radius
    for name, value in notes["config"].items():
        assert getattr(config, name) == value, name


def shrunk(image: np.ndarray) -> np.ndarray:
    """The image shrunk to a quarter by the rule of MATLAB's imresize."""
    size = image.shape[0] // 4, image.shape[1] // 4
    return _resized(image, size)


def bicubic(low: np.ndarray) -> np.ndarray:
    return _resized(low, (low.shape[0] * 4, low.shape[1] * 4))


def _resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(
        resize(jnp.asarray(image), size, method="bicubic", antialias=True, convention="matlab")
    )


def psnr_y(image: np.ndarray, truth: np.ndarray) -> float:
    one, other = (
        (x[4:-4, 4:-4] @ np.array([65.481, 128.553, 24.966]) / 255 + 16) for x in (image, truth)
    )
    return float(peak_signal_noise_ratio(one, other, data_range=255))


def gains(pictures: dict[str, np.ndarray]) -> dict[str, float]:
    """Decibels over bicubic, of each picture."""
    gain = {}
    for name, picture in pictures.items():
        truth = picture[: picture.shape[0] // 4 * 4, : picture.shape[1] // 4 * 4]
        low = shrunk(truth)
        restored = restore.restore(low)
        assert restored.shape == truth.shape
        gain[name] = psnr_y(restored, truth) - psnr_y(bicubic(low), truth)
    return gain


def test_better_than_bicubic_on_built_in_photos_that_it_never_saw(notes):
    assert set(BUILT_IN_VALIDATION) <= set(notes["held_out"])
    _, photos = open_training_photos(None, None, crop=1)
    gain = gains({name: photos.read(index) for index, name in enumerate(photos.names)})
    assert gain.keys() == set(BUILT_IN_VALIDATION)
    assert min(gain.values()) > 0, gain


def test_a_decibel_better_than_bicubic_on_kodak_photos_that_it_never_saw(shared_data, notes):
    folder = shared_data / "kodak"
    names = sorted(set(notes["held_out"]) - set(BUILT_IN_VALIDATION))
    assert len(names) >= 6
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"no {missing[0]} in {folder}")
    gain = gains({name: np.asarray(Image.open(folder / name)) for name in names})
    assert min(gain.values()) > 0, gain
    assert np.mean(list(gain.values())) >= 1, gain


@pytest.mark.sample(1)
@pytest.mark.parametrize("quality", [60, 90])
def test_photo_is_better_than_clean_and_bicubic_on_jpegs_that_it_never_saw(quality):
    path = PATH.with_name(SHIPPED["photo"])
    assert PATH.stat().st_size == pytest.approx(path.stat().st_size, abs=1000)
    assert "chelsea.png" in read_weights(path)[1]["held_out"]
    _, photos = open_training_photos(None, None, crop=1)
    truth = photos.read(photos.names.index(BUILT_IN_VALIDATION[0]))[:256, 100:356]
    file = io.BytesIO()
    Image.fromarray(shrunk(truth)).save(file, "JPEG", quality=quality)
    low = np.asarray(Image.open(file))
    figures = {
        word: psnr_y(np.asarray(restore.restore(low, word, engine="torch")), truth)
        for word in (None, "photo", "clean")
    }
    assert figures[None] == figures["photo"]  # chosen by the traces in its pixels
    assert figures["photo"] > max(figures["clean"], psnr_y(bicubic(low), truth))


def test_jax_and_torch_restore_alike():
    low = np.random.default_rng(0).integers(0, 256, (37, 50, 3), np.uint8)
    ours, theirs = (restore.restore(low, engine=engine) for engine in ("jax", "torch"))
    # Float32 rounding may carry a sample over a half level, and no further.
    assert np.abs(ours.astype(int) - theirs).max() <= 1
    assert (ours != theirs).mean() < 1e-3


def test_the_command_needs_no_model(tmp_path, capsys):
    Image.fromarray(np.full((20, 30, 3), 90, np.uint8)).save(tmp_path / "gray.png")
    out = tmp_path / "out"
    assert restore.main([str(tmp_path / "gray.png"), "--out", str(out)]) == 0
    with Image.open(out / "gray.png") as picture:
        assert picture.size == (120, 80)
        # A flat picture stays flat; the border sees the convolutions' padding.
        assert np.abs(np.asarray(picture)[24:-24, 24:-24].astype(int) - 90).max() <= 1
    assert "jaxsr's own" in capsys.readouterr().out
