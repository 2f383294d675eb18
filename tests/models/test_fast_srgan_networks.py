"""Generator and discriminator: shapes, sizes, a pixel's reach, and the public checkpoint."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from jaxsr.errors import InputError
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.discriminator import Discriminator
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.models.load import load_model
from jaxsr.models.weight_files import load_weights, read_weights

CONFIGURATIONS = [
    {"scale": scale, "channels": channels, "block": block, "norm": norm, "predict": predict}
    for scale, channels, block, norm, predict in itertools.product(
        (1, 2, 4),
        (1, 3),
        ("residual", "mobile"),
        ("instance", "batch", "none"),
        ("image", "residual"),
    )
]


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_number_as_published():
    assert count(Generator(FastSRGANConfig())) == 925_646
    # 3·64·9 + 64, 9·(64² + 64·128 + 128² + 128·256 + 256² + 256·512 + 512²), 512 + 1: "4.68 M"
    assert count(Discriminator(FastSRGANConfig())) == 4_684_033


@pytest.mark.sample(18)
@pytest.mark.parametrize("fields", CONFIGURATIONS, ids=lambda f: "-".join(map(str, f.values())))
def test_every_configuration_gives_the_scaled_shape(fields):
    config = FastSRGANConfig(width=8, depth=2, **fields)
    low = torch.rand(1, config.channels, 9, 7) * 2 - 1
    high = Generator(config)(low)
    assert tuple(high.shape) == (1, config.channels, 9 * config.scale, 7 * config.scale)
    assert high.isfinite().all()
    if config.predict == "image":
        assert high.abs().max() <= 1


@pytest.mark.parametrize("norm", ["instance", "batch", "none"])
@pytest.mark.parametrize("layout", ["alternating", "strided"])
@pytest.mark.parametrize("channels", [1, 3])
def test_discriminator_gives_a_logit_per_patch(norm, layout, channels):
    config = FastSRGANConfig(
        channels=channels,
        discriminator_width=8,
        discriminator_layers=4,
        discriminator_layout=layout,
        discriminator_norm=norm,
    )
    logits = Discriminator(config)(torch.rand(2, channels, 50, 70))
    stride = config.discriminator_stride
    assert tuple(logits.shape) == (2, 1, -(-50 // stride), -(-70 // stride))


def test_residual_prediction_starts_as_the_bicubic_enlargement():
    config = FastSRGANConfig(width=8, depth=1, predict="residual")
    low = torch.rand(2, 3, 8, 8) * 2 - 1
    want = F.interpolate(low, size=(32, 32), mode="bicubic", align_corners=False)
    torch.testing.assert_close(Generator(config)(low), want, rtol=0, atol=0)
    same = FastSRGANConfig(width=8, depth=1, scale=1, predict="residual")
    torch.testing.assert_close(Generator(same)(low), low, rtol=0, atol=0)


def test_no_checkerboard_at_the_start():
    # Users of the predecessor complain of it. A flat image must come back flat away from borders.
    torch.manual_seed(0)
    config = FastSRGANConfig(width=16, depth=1, norm="none", scale=2)
    out = Generator(config)(torch.full((1, 3, 16, 16), 0.3))[..., 12:-12, 12:-12]
    spread = (out.amax((2, 3)) - out.amin((2, 3))).max()
    assert spread < 1e-6  # float32 rounding of one constant
    plain = Generator(config)
    convolution = plain.get_submodule("upsampling.0.conv")
    assert isinstance(convolution, torch.nn.Conv2d)
    convolution.reset_parameters()  # torch's own initial weights, for comparison
    out = plain(torch.full((1, 3, 16, 16), 0.3))[..., 12:-12, 12:-12]
    assert (out.amax((2, 3)) - out.amin((2, 3))).max() > 1e-3


@pytest.mark.sample(6)
@pytest.mark.parametrize("block", ["residual", "mobile"])
@pytest.mark.parametrize(("scale", "norm"), [(1, "none"), (2, "none"), (4, "none"), (4, "batch")])
@pytest.mark.parametrize("predict", ["image", "residual"])
def test_receptive_radius_holds_what_a_pixel_depends_on(block, scale, norm, predict):
    torch.manual_seed(0)
    config = FastSRGANConfig(
        width=4, depth=2, block=block, scale=scale, norm=norm, predict=predict, channels=1
    )
    radius = config.receptive_radius
    assert radius is not None
    generator = Generator(config).double().eval()
    for parameter in generator.parameters():  # the residual head starts at 0 and would hide it all
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    low = torch.rand(1, 1, 41, 41, dtype=torch.float64, requires_grad=True)
    middle = generator(low)[0, 0, 20 * scale : 21 * scale, 20 * scale : 21 * scale].sum()
    (gradient,) = torch.autograd.grad(middle, low)
    rows = gradient[0, 0].abs().sum(1).nonzero().squeeze()
    reach = max(20 - int(rows.min()), int(rows.max()) - 20)
    assert reach <= radius
    # Scale 4 rounds 2.75 px up; a PReLU or a narrow filter may also hide the outermost tap.
    assert reach >= radius - 1


def test_instance_normalisation_admits_no_tiles():
    assert FastSRGANConfig(norm="instance").receptive_radius is None
    torch.manual_seed(0)
    generator = Generator(FastSRGANConfig(width=4, depth=1))
    low = torch.rand(1, 3, 64, 64)
    far = low.clone()
    far[..., :4, :4] = 0
    assert (generator(low) - generator(far))[..., -8:, -8:].abs().max() > 1e-6


def test_inputs_of_the_wrong_form_are_refused():
    with pytest.raises(ValueError, match=r"takes \(batch, 3, height, width\), got \(1, 1, 8, 8\)"):
        Generator(FastSRGANConfig(width=4, depth=1))(torch.zeros(1, 1, 8, 8))
    discriminator = Discriminator(FastSRGANConfig(discriminator_width=4))
    with pytest.raises(ValueError, match=r"\(batch, 3, height, width\), got \(3, 32, 32\)"):
        discriminator(torch.zeros(3, 32, 32))
    with pytest.raises(ValueError, match="needs images above 16×16 px, got 16×16"):
        discriminator(torch.zeros(1, 3, 16, 16))
    discriminator(torch.zeros(1, 3, 17, 17))


def test_public_checkpoint_restores_detail_that_bicubic_loses(shared_data):
    """The checkpoint was trained adversarially: near bicubic in PSNR, not above it."""
    generator = Generator(FastSRGANConfig()).eval()
    path = shared_data / "weights" / "fast_srgan_x4_hasnainraz.pt"
    load_weights(generator, read_weights(path), source=path.name)
    picture = Image.open(shared_data / "kodak" / "23.png").convert("RGB").crop((240, 120, 496, 376))
    small = picture.resize((64, 64), Image.Resampling.BICUBIC)
    low = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.inference_mode():
        out = generator(low)[0].permute(1, 2, 0)
    # Rounded; the predecessor truncated to uint8 and came out half a level dark.
    got = ((out + 1) * 127.5).round().clamp(0, 255).numpy()
    bicubic = np.asarray(small.resize((256, 256), Image.Resampling.BICUBIC), dtype=np.float64)
    truth = np.asarray(picture, dtype=np.float64)

    def psnr(image):
        return 10 * np.log10(255**2 / np.mean((image - truth)[8:-8, 8:-8] ** 2))

    assert psnr(bicubic) > 25
    assert psnr(got) > psnr(bicubic) - 3
    # Finer than bicubic: more energy between neighbouring pixels, and no more than the truth's half
    # again. That is what the adversarial phase is for.
    detail = [np.abs(np.diff(image, axis=1)).mean() for image in (bicubic, got, truth)]
    assert detail[0] < detail[1] < 1.5 * detail[2]
    print(f"PSNR {psnr(got):.2f} dB, bicubic {psnr(bicubic):.2f} dB; detail {detail}")


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_weights_that_do_not_say_what_they_predict_are_refused(tmp_path, norm):
    config = FastSRGANConfig(width=8, depth=2, norm=norm, predict="residual")
    torch.save(Generator(config).state_dict(), tmp_path / "generator.pt")
    with pytest.raises(InputError, match="do not say whether they predict the image"):
        load_model(tmp_path / "generator.pt")
