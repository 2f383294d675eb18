"""The SLS loss against closed forms; the published form's defects, which the corrected lacks."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from jaxsr.models.losses.sls import deep_supervision, sls_loss, warmup_loss

FORMS = ["paper", "corrected"]
SURE = 30.0  # a logit whose sigmoid is 1 in float32


def box(top, left, height, width, *, side=256):
    mask = torch.zeros(1, 1, side, side)
    mask[..., top : top + height, left : left + width] = 1
    return mask


def logits_of(mask):
    return torch.where(mask > 0, SURE, -SURE)


@pytest.mark.parametrize("form", FORMS)
def test_a_perfect_prediction_costs_nothing(form):
    mask = box(20, 30, 4, 5)
    scale, location = sls_loss(logits_of(mask), mask, form=form)
    assert abs(scale) < 1e-5 and abs(location) < 1e-3  # the paper's 1e-8 in the denominator
    assert abs(warmup_loss(logits_of(mask), mask, form=form)) < 1e-5


def test_scale_term_of_a_prediction_of_four_times_the_area():
    """P = 64, G = I = 16: IoU = 1/4, d = 24² = 576, α = (16 + 576) / (64 + 576)."""
    mask, predicted = box(100, 100, 4, 4), box(100, 100, 8, 8)
    scale, _ = sls_loss(logits_of(predicted), mask, form="paper")
    assert float(scale) == pytest.approx(1 - 592 / 640 / 4, abs=1e-5)
    loss = warmup_loss(logits_of(predicted), mask, form="paper")
    assert float(loss) == pytest.approx(0.75, abs=1e-5)
    scale, _ = sls_loss(logits_of(predicted), mask, form="corrected")
    assert float(scale) == pytest.approx(1 - 593 / 641 * 17 / 65, abs=1e-5)


def test_scale_term_is_a_mean_over_images_and_not_over_the_pixels_of_the_batch():
    masks = torch.cat([box(0, 0, 2, 2), box(0, 0, 40, 40)])
    predicted = torch.cat([box(50, 50, 2, 2), box(0, 0, 40, 40)])
    loss = warmup_loss(logits_of(predicted), masks, form="paper")
    assert float(loss) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize(("place", "other"), [((100, 40), (60, 120)), ((3, 200), (250, 9))])
def test_corrected_location_is_between_the_centres_of_mass(place, other):
    mask, predicted = (box(top, left, 3, 3) for top, left in (place, other))
    _, location = sls_loss(logits_of(predicted), mask, form="corrected")
    polar = []
    for image in (mask, predicted):
        y, x = (np.array(ndimage.center_of_mass(image[0, 0].numpy())) + 0.5) / 256
        polar.append((math.hypot(x, y), math.atan2(y, x)))
    (length_g, angle_g), (length_p, angle_p) = polar
    ratio = min(length_p, length_g) / max(length_p, length_g)
    want = 1 - ratio + 4 / math.pi**2 * (angle_p - angle_g) ** 2
    assert float(location) == pytest.approx(want, abs=2e-3)  # CENTRE_MASS of 1/900 of the target


def test_a_small_target_at_twice_the_distance_costs_half_where_the_paper_sees_less():
    """Defect 5: of a target of 9 px the published centroid is below its smoothing."""
    mask, predicted = box(63, 63, 3, 3), box(127, 127, 3, 3)
    _, corrected = sls_loss(logits_of(predicted), mask, form="corrected")
    _, published = sls_loss(logits_of(predicted), mask, form="paper")
    assert float(corrected) == pytest.approx(0.5, abs=5e-3)
    assert float(published) < 0.3


@pytest.mark.parametrize("level", [-5.0, 0.0, 3.0])
def test_without_a_target_less_prediction_is_better(level):
    """Defect 6: the published IoU is 0 whatever is predicted, and has no gradient."""
    mask = torch.zeros(1, 1, 32, 32)

    def gradient(form):
        logits = torch.full((1, 1, 32, 32), level, requires_grad=True)
        warmup_loss(logits, mask, form=form).backward()
        assert logits.grad is not None
        return logits.grad

    assert (gradient("corrected") > 0).all()
    assert (gradient("paper") == 0).all()
    scale, location = sls_loss(torch.full_like(mask, -SURE), mask, form="corrected")
    assert abs(scale) < 1e-4 and location == 0


@pytest.mark.parametrize("logit", [-1e4, -120.0, 0.0, 120.0, 1e4])
@pytest.mark.parametrize("targets", [0, 1])
def test_corrected_is_finite_where_the_sigmoid_under_or_overflows(logit, targets):
    mask = box(4, 5, 2, 2, side=32) * targets
    logits = torch.full((1, 1, 32, 32), logit, requires_grad=True)
    heads = [logits, logits, logits[..., ::2, ::2], logits[..., ::4, ::4], logits[..., ::8, ::8]]
    loss = deep_supervision(heads, mask, form="corrected")["loss"]
    (loss + warmup_loss(logits, mask, form="corrected")).backward()
    assert logits.grad is not None
    assert math.isfinite(loss.detach()) and torch.isfinite(logits.grad).all()


def test_the_published_form_is_not():
    mask, logits = torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), -1e4)
    assert math.isnan(warmup_loss(logits, mask, form="paper"))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_match_finite_differences(form):
    generator = torch.Generator().manual_seed(0)
    mask = box(3, 5, 4, 4, side=16).repeat(2, 1, 1, 1)
    logits = torch.randn(2, 1, 16, 16, generator=generator).requires_grad_()

    def total(x):
        scale, location = sls_loss(x, mask, form=form)
        return scale + location

    total(logits).backward()
    direction = torch.randn(2, 1, 16, 16, generator=generator)
    step = 1e-2
    with torch.no_grad():
        slope = (total(logits + step * direction) - total(logits - step * direction)) / (2 * step)
    assert logits.grad is not None
    # Central differences of a float32 loss at a step of 1e-2 hold about three digits.
    assert float((logits.grad * direction).sum()) == pytest.approx(float(slope), rel=2e-2, abs=1e-4)


def test_deep_supervision_is_the_equal_mean_of_five_terms_at_four_sizes():
    mask = box(64, 64, 8, 8)
    sizes = [256, 256, 128, 64, 32]
    right = [logits_of(box(*(4 * [0]), side=s)) for s in sizes]
    for logits, size in zip(right, sizes, strict=True):
        part = size // 32
        logits[..., 8 * part : 9 * part, 8 * part : 9 * part] = SURE
    assert abs(deep_supervision(right, mask, form="corrected")["loss"]) < 1e-3
    for wrong in range(5):
        outputs = [t.clone() for t in right]
        outputs[wrong][:] = -SURE
        terms = deep_supervision(outputs, mask, form="paper")
        scale, location = sls_loss(
            outputs[wrong], torch.nn.functional.max_pool2d(mask, 256 // sizes[wrong]), form="paper"
        )
        assert float(terms["scale"]) == pytest.approx(float(scale) / 5, abs=1e-4)
        assert float(terms["location"]) == pytest.approx(float(location) / 5, abs=1e-3)


def test_sums_are_float32_for_bfloat16_logits():
    mask = box(20, 30, 3, 3)
    logits = (logits_of(mask) / 4).to(torch.bfloat16)
    scale, location = sls_loss(logits, mask.to(torch.bfloat16), form="corrected")
    assert scale.dtype == location.dtype == torch.float32
    exact, _ = sls_loss(logits.float(), mask, form="corrected")
    assert float(scale) == float(exact)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="one channel"):
        warmup_loss(torch.zeros(2, 1, 8, 8), torch.zeros(2, 3, 8, 8), form="paper")
