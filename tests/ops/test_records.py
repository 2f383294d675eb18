"""Kernels and policies on records: as Grain runs them, and what moves along."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from jaxsr import ops
from jaxsr.interop.image_transforms import TensorTransform

grain = pytest.importorskip("grain")
POLICY = (ops.RandomFlip(horizontal=1.0),)


def records():
    rng = np.random.default_rng(0)
    return [
        {
            "image": rng.integers(0, 256, (6, 8, 3)).astype(np.uint8),
            "mask": rng.integers(0, 9, (6, 8, 1)).astype(np.uint8),
            "boxes": np.array([[1.0, 2, 4, 5]], np.float32),
            "label": k,
            "name": f"{k}",
        }
        for k in range(4)
    ]


def test_grain_maps_single_records():
    dataset = grain.MapDataset.source(records()).seed(0)
    changed = list(dataset.random_map(ops.as_grain(POLICY)))
    for before, after in zip(records(), changed, strict=True):
        np.testing.assert_array_equal(after["image"], before["image"][:, ::-1])
        np.testing.assert_array_equal(after["mask"], before["mask"][:, ::-1])
        np.testing.assert_array_equal(after["boxes"], [[4, 2, 7, 5]])
        assert (after["label"], after["name"]) == (before["label"], before["name"])
    small = list(dataset.map(ops.as_grain(partial(ops.resize, size=3))))
    assert small[0]["image"].shape == (3, 3, 3) and small[0]["mask"].shape == (6, 8, 1)


@dataclass(frozen=True)
class Mirror:
    """A step that is none of ours."""

    def __call__(self, keys, batch, layout):
        return batch._replace(images=batch.images[:, :, ::-1])


@pytest.mark.parametrize("step", [*POLICY, Mirror()], ids=str)
def test_a_step_alone_is_a_policy(step):
    dataset = grain.MapDataset.source(records()).seed(0).random_map(ops.as_grain(step))
    for before, after in zip(records(), dataset, strict=True):
        np.testing.assert_array_equal(after["image"], before["image"][:, ::-1])
    tensor = torch.from_numpy(records()[1]["image"]).permute(2, 0, 1)
    assert torch.equal(TensorTransform(POLICY[0])(tensor), tensor.flip(-1))
    changed = ops.transform_record(records()[0], np.negative, 0)  # a kernel without a signature
    np.testing.assert_array_equal(changed["image"], np.negative(records()[0]["image"]))


def test_grains_seed_decides():
    policy = ops.as_grain((ops.RandomErasing(probability=1.0),))

    def images(seed):
        dataset = grain.MapDataset.source(records()).seed(seed).random_map(policy)
        return np.stack([record["image"] for record in dataset])

    np.testing.assert_array_equal(images(0), images(0))
    assert (images(0) != images(1)).any()


def test_batches_and_names():
    batch = {"x": np.stack([record["image"] for record in records()]), "y": np.eye(4)}
    names = {"images": "x", "labels": "y"}
    out = ops.transform_record(batch, (ops.Mixup(),), 0, names)
    np.testing.assert_allclose(out["y"].sum(1), 1, atol=1e-6)
    assert (out["y"] != batch["y"]).any() and (out["x"] != batch["x"]).any()
    with pytest.raises(KeyError, match="image"):
        ops.transform_record(batch, POLICY, 0)
