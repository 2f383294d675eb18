"""Kernels and policies on torch tensors."""

from functools import partial

import torch
import torch.nn.functional as F

from jaxsr import ops
from jaxsr.interop.image_transforms import TensorTransform

IMAGE = torch.arange(3 * 6 * 8, dtype=torch.uint8).reshape(3, 6, 8)


def test_a_policy_moves_what_belongs_to_a_picture():
    flip = TensorTransform((ops.RandomFlip(horizontal=1.0),))
    assert torch.equal(flip(IMAGE), IMAGE.flip(-1))
    batch = torch.stack([IMAGE, IMAGE + 1])
    assert torch.equal(flip(batch), batch.flip(-1))
    sample = {"image": IMAGE, "boxes": torch.tensor([[1.0, 2, 4, 5]]), "label": 3}
    out = flip(sample)
    assert out["boxes"].tolist() == [[4, 2, 7, 5]] and out["label"] == 3
    assert torch.equal(sample["image"], IMAGE)


def test_a_kernel_is_torchs():
    resize = TensorTransform(partial(ops.resize, size=(4, 5), axes=(-2, -1)))
    images = IMAGE[None] / 255
    torch.testing.assert_close(resize(images), F.interpolate(images, (4, 5), mode="bilinear"))


def test_torchs_seed_decides():
    erase = TensorTransform((ops.RandomErasing(probability=1.0),))
    torch.manual_seed(0)
    first, second = erase(IMAGE), erase(IMAGE)
    torch.manual_seed(0)
    assert torch.equal(erase(IMAGE), first) and not torch.equal(first, second)


def test_fields_that_are_not_tensors_stay():
    flip = TensorTransform((ops.RandomFlip(horizontal=1.0),))
    sample = {"image": IMAGE, "label": "cat", "mask": None, "name": 3}
    assert {**flip(sample), "image": 0} == {**sample, "image": 0}


def test_bfloat16_images():
    image = (IMAGE / 255).bfloat16()
    assert torch.equal(TensorTransform((ops.RandomFlip(horizontal=1.0),))(image), image.flip(-1))
