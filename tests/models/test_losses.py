"""Each loss against somebody else's, and what it refuses."""

import math
from typing import Any, cast

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import uniform_filter
from skimage.metrics import structural_similarity

from jaxsr.errors import InputError
from jaxsr.interop import to_jax
from jaxsr.models.libraries import import_library
from jaxsr.models.losses.masks import MASK_LOSSES
from jaxsr.models.losses.pictures import PICTURE_LOSSES
from jaxsr.models.losses.terms import Term, make_terms
from jaxsr.models.losses.weights import MASK_LOSS_NAMES, PICTURE_LOSS_NAMES, parse_weights
from tests.models.record_losses import SIZES, case, recorded

MODULE = "tests.training.example_networks"


def pictures(*size):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(*size, generator=generator), torch.rand(*size, generator=generator)


def logits_and_mask(n=3, side=24):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, 1, side, side, generator=generator) * 3
    mask = (torch.rand(n, 1, side, side, generator=generator) > 0.8).float()
    mask[-1] = 0  # no target
    return logits, mask


@pytest.mark.parametrize(
    ("name", "reference"),
    [("l1", F.l1_loss), ("mse", F.mse_loss), ("smooth_l1", F.smooth_l1_loss)],
)
def test_pixel_losses_are_torchs(name, reference):
    a, b = pictures(2, 3, 8, 9)
    assert PICTURE_LOSSES[name](a, b) == reference(a, b)


def test_charbonnier_is_a_smooth_absolute_difference():
    a, b = (x.double() for x in pictures(2, 3, 8, 9))
    # The pseudo-Huber function of SciPy at delta 1e-3 is δ²(√(1 + (x/δ)²) − 1).
    from scipy.special import pseudo_huber

    expected = (pseudo_huber(1e-3, (a - b).numpy()) / 1e-3 + 1e-3).mean()
    assert PICTURE_LOSSES["charbonnier"](a, b).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [(2, 3, 24, 31), (1, 1, 11, 11)])
def test_ssim_is_scikit_images(size):
    a, b = pictures(*size)
    b = 0.7 * a + 0.3 * b
    expected = [
        structural_similarity(
            x.numpy(), y.numpy(), channel_axis=0, data_range=1.0, gaussian_weights=True,
            use_sample_covariance=False, sigma=1.5,
        )
        for x, y in zip(a.double(), b.double(), strict=True)
    ]  # fmt: skip
    # float32 sums over windows of 121 pixels
    assert 1 - PICTURE_LOSSES["ssim"](a, b).item() == pytest.approx(np.mean(expected), abs=2e-6)
    assert PICTURE_LOSSES["ssim"](a, a).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", ["ms_ssim", "focal_frequency"])
def test_losses_of_restoration_are_their_packages(name):
    for size, expected in zip(SIZES[name], recorded()[name], strict=True):
        image, target = case(*size)
        # Their window is rounded to float32.
        tolerance = 1e-5 if name == "ms_ssim" else 1e-12
        assert PICTURE_LOSSES[name](image, target).item() == pytest.approx(expected, rel=tolerance)
        single = PICTURE_LOSSES[name](image.float(), target.float())
        assert single.item() == pytest.approx(expected, rel=1e-4)
        assert PICTURE_LOSSES[name](target, target).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("size", [(1, 2, 161, 190), (1, 1, 187, 163)])
def test_ms_ssim_of_odd_sides_is_the_papers(size):
    """Five scales by scikit-image, halved as the authors' MATLAB: 2×2 means that mirror."""
    image, target = (x.numpy()[0] for x in case(*size))
    expected = []
    for channels in zip(image, target, strict=True):
        (a, b), scales = channels, []
        for scale in range(5):
            # A large K1 leaves contrast and structure alone.
            k1 = 1e6 if scale < 4 else 0.01
            scales.append(
                structural_similarity(
                    a, b, data_range=1.0, gaussian_weights=True, use_sample_covariance=False,
                    sigma=1.5, K1=k1,
                )
            )  # fmt: skip
            a, b = (uniform_filter(x, 2, mode="reflect", origin=-1)[::2, ::2] for x in (a, b))
        expected.append(np.prod(np.power(scales, [0.0448, 0.2856, 0.3001, 0.2363, 0.1333])))
    loss = PICTURE_LOSSES["ms_ssim"](*case(*size)).item()
    assert 1 - loss == pytest.approx(np.mean(expected), rel=1e-9)


@pytest.mark.parametrize("name", ["ms_ssim", "focal_frequency"])
def test_losses_of_restoration_in_jax(name):
    """Value and gradient as torch's, also where similarity is negative and where pictures agree."""

    class Loss(torch.nn.Module):
        def forward(self, image, target):
            return PICTURE_LOSSES[name](image, target)

    loss = PICTURE_LOSSES[name]
    model, scale = to_jax(Loss()), 0.0
    in_jax = jax.jit(jax.value_and_grad(lambda x, y: model.apply({}, {}, x, y)[0]))
    image, target = case(1, 1, 161, 162)
    for one in (image, 1 - target, target):
        leaf = one.clone().requires_grad_()
        expected = loss(leaf, target)
        expected.backward()
        value, gradient = in_jax(one.float().numpy(), target.float().numpy())
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        # float32 sums over some 26,000 pixels; where pictures agree, the gradient is rounding alone
        assert float(value) == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
        scale = max(leaf.grad.abs().max().item(), scale)
        np.testing.assert_allclose(gradient / scale, (leaf.grad / scale).numpy(), atol=1e-4)


def test_focal_frequency_in_bfloat16():
    image, target = (x.bfloat16() for x in case(1, 3, 16, 16))
    loss = PICTURE_LOSSES["focal_frequency"](image, target)
    assert loss.dtype == torch.bfloat16
    expected = PICTURE_LOSSES["focal_frequency"]((image - target).double(), 0 * target.double())
    assert loss.item() == pytest.approx(expected.item(), rel=2**-8)


def test_bce_is_torchs():
    logits, mask = logits_and_mask()
    expected = F.binary_cross_entropy_with_logits(logits, mask)
    assert MASK_LOSSES["bce"](logits, mask) == expected


@pytest.mark.parametrize("name", ["dice", "iou"])
def test_overlaps_of_sure_predictions_are_scikit_learns(name):
    from sklearn.metrics import confusion_matrix

    logits, mask = logits_and_mask()
    logits = torch.where(logits > 0, 100.0, -100.0)
    losses = []
    for one, truth in zip(logits, mask, strict=True):
        (_, fp), (fn, tp) = confusion_matrix(
            truth.flatten() > 0, one.flatten() > 0, labels=[False, True]
        )
        # A pixel on both sides of each quotient.
        dice, iou = (2 * tp + 1) / (2 * tp + fp + fn + 1), (tp + 1) / (tp + fp + fn + 1)
        losses.append(1 - {"dice": dice, "iou": iou}[name])
    assert MASK_LOSSES[name](logits, mask).item() == pytest.approx(np.mean(losses), abs=1e-6)


def test_mask_losses_are_segmentation_models_pytorchs():
    try:
        losses = import_library("segmentation_models_pytorch").losses
    except InputError as error:
        pytest.skip(str(error))
    logits, mask = logits_and_mask()
    references = {
        # It halves numerator and denominator before it adds to both.
        "dice": losses.DiceLoss("binary", smooth=0.5),
        "iou": losses.JaccardLoss("binary", smooth=1.0),
        "focal": losses.FocalLoss("binary", alpha=0.25, gamma=2.0),
    }
    for name, reference in references.items():
        # Theirs sums over the batch, and leaves images without a target out.
        for row in range(len(logits) - 1):
            one, truth = logits[row : row + 1], mask[row : row + 1]
            expected = reference(one, truth).item()
            assert MASK_LOSSES[name](one, truth).item() == pytest.approx(expected, rel=1e-5), name


def test_focal_is_cross_entropy_weighted_by_the_miss():
    # Lin et al. 2017, equation 5, for one target pixel at p = 0.5 and one background one at p = 0.1
    logits = torch.tensor([[[[0.0, math.log(1 / 9)]]]])
    mask = torch.tensor([[[[1.0, 0.0]]]])
    expected = (0.25 * 0.5**2 * -math.log(0.5) + 0.75 * 0.1**2 * -math.log(0.9)) / 2
    assert MASK_LOSSES["focal"](logits, mask).item() == pytest.approx(expected, rel=1e-6)


def test_sls_of_a_perfect_prediction_is_next_to_nothing():
    _, mask = logits_and_mask()
    assert MASK_LOSSES["sls"](200 * mask - 100, mask).item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("name", [*PICTURE_LOSSES, *MASK_LOSSES])
def test_other_shapes_are_refused(name):
    loss = {**PICTURE_LOSSES, **MASK_LOSSES}[name]
    with pytest.raises(InputError, match=r"\(2, 1, 16, 16\)"):
        loss(torch.zeros(2, 3, 16, 16), torch.zeros(2, 1, 16, 16))


def test_ssim_needs_a_window():
    with pytest.raises(InputError, match="at least 11×11 px, got 8×8"):
        PICTURE_LOSSES["ssim"](*pictures(1, 1, 8, 8))


def test_ms_ssim_needs_five_windows():
    with pytest.raises(InputError, match="at least 161×161 px, got 160×176"):
        PICTURE_LOSSES["ms_ssim"](*pictures(1, 1, 160, 176))


def test_weights_keep_their_order_and_default_to_one():
    weights = parse_weights("ssim=0.1, l1,a.b:c=2", names=PICTURE_LOSSES, option="--loss")
    assert [*weights.items()] == [("ssim", 0.1), ("l1", 1.0), ("a.b:c", 2.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l3=1", "no loss 'l3'; there are l1, smooth_l1"),
        ("", "no loss ''"),
        ("l1=1,l1=2", "names l1 twice"),
        ("l1=much", "l1 has the weight 'much'; give a number above 0, as l1=0.5"),
        ("l1=-1", "weight '-1'"),
        ("l1=nan", "weight 'nan'"),
    ],
)
def test_wrong_weights(text, message):
    with pytest.raises(InputError, match=message):
        parse_weights(text, names=PICTURE_LOSSES, option="--loss")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:loss", "cannot import no_such_module"),
        (f"{MODULE}:nothing", "has no class or function 'nothing'"),
        (f"{MODULE}:not_callable", "is a int; give a function"),
        (f"{MODULE}:NeedsWidth", "is a class that needs arguments"),
    ],
)
def test_losses_that_cannot_be_imported(name, message):
    with pytest.raises(InputError, match=message):
        make_terms({name: 1.0}, PICTURE_LOSSES, option="--loss")


def test_a_class_of_losses_is_called_by_its_object():
    (term,) = make_terms({"torch.nn:HuberLoss": 2.0}, PICTURE_LOSSES, option="--loss")
    a, b = pictures(1, 1, 4, 4)
    assert term.value(a, b) == F.huber_loss(a, b)


def test_a_loss_must_be_a_scalar():
    a, b = pictures(1, 1, 4, 4)
    with pytest.raises(InputError, match=r"the loss mine gave \(1, 1, 4, 4\), not a scalar"):
        Term("mine", 1.0, lambda x, y: x - y).value(a, b)
    with pytest.raises(InputError, match="the loss mine gave float, not a scalar tensor"):
        Term("mine", 1.0, lambda x, y: cast(Any, 0.0)).value(a, b)


def test_options_and_functions_name_the_same_losses():
    assert tuple(PICTURE_LOSSES) == PICTURE_LOSS_NAMES
    assert tuple(MASK_LOSSES) == MASK_LOSS_NAMES
