"""Clips of frames as Pillow reads them, and a task that trains on them."""

import pickle

import numpy as np
import pytest
from PIL import Image
from torch import nn
from torch.nn import functional as F

import jaxsr
from jaxsr.data.clips import Clips
from jaxsr.errors import InputError


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for clip, (count, size) in {
        "b": (4, (20, 24)),
        "a/x": (3, (26, 18)),
        "c": (1, (20, 20)),
    }.items():
        (tmp_path / clip).mkdir(parents=True)
        for frame in range(count):
            pixels = rng.integers(0, 256, (*size, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / clip / f"{frame:03}.png")
    return tmp_path


def frames_of(folder, clip, first, count):
    return np.stack(
        [np.asarray(Image.open(folder / clip / f"{n:03}.png")) for n in range(first, first + count)]
    )


def test_items_follow_each_other_within_a_clip(folder):
    clips = Clips(folder, frames=2, crop=18)
    expected = [("a/x", 0), ("a/x", 1), ("b", 0), ("b", 1), ("b", 2)]
    assert len(clips) == len(expected)
    for index, (clip, first) in enumerate(expected):
        np.random.seed(index)
        item = clips[index]["clip"]
        np.random.seed(index)
        frames = frames_of(folder, clip, first, 2)
        top, left = (np.random.randint(0, side - 17) for side in frames.shape[1:3])
        np.testing.assert_array_equal(item, frames[:, top : top + 18, left : left + 18])
    assert len(Clips(folder, frames=2, crop=18, stride=2)) == 3


def test_whole_frames(folder):
    clips = Clips(folder / "b", frames=3)
    np.testing.assert_array_equal(clips[1]["clip"], frames_of(folder, "b", 1, 3))


def test_numbers_in_names_count_by_their_value(tmp_path):
    """As `ffmpeg -i a.mp4 f%d.png` writes them."""
    for number in range(1, 13):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"f{number}.png")
    clips = Clips(tmp_path, frames=12)
    np.testing.assert_array_equal(clips[0]["clip"][:, 0, 0, 0], range(1, 13))


def test_clips_reach_processes_that_load_data(folder):
    clips = Clips(folder, frames=2, crop=18)
    sent = pickle.loads(pickle.dumps(clips))
    items = []
    for source in (clips, sent):
        np.random.seed(0)
        items.append(source[3]["clip"])
    np.testing.assert_array_equal(*items)


def test_what_cannot_be_used_is_named(folder):
    with pytest.raises(InputError, match="crop must be at least 1 pixel, got 0"):
        Clips(folder, frames=2, crop=0)
    with pytest.raises(InputError, match=r"differ in size; frames .* where no crop is given"):
        Clips(folder, frames=2)
    with pytest.raises(InputError, match=r"no clip of .* has frames=5; the longest has 4"):
        Clips(folder, frames=5, crop=16)
    with pytest.raises(InputError, match=r"a/x/000\.png .*less than crop=19"):
        Clips(folder, frames=2, crop=19)
    with pytest.raises(InputError, match="frames and stride must be at least 1, got 0 and 1"):
        Clips(folder, frames=0)


class Steady(jaxsr.Task):
    """Predicts the middle frame from those around it."""

    def network(self):
        return nn.Conv2d(6, 3, 3, padding=1)

    def loss(self, network, batch):
        clip = batch["clip"].float().movedim(-1, 2) / 255
        return F.l1_loss(network(clip[:, ::2].flatten(1, 2)), clip[:, 1])

    def train_data(self):
        return Clips(self.config.data, frames=3, crop=16)


def test_a_task_trains_on_clips(folder, tmp_path):
    losses = []
    for engine in ("jax", "torch"):
        run = jaxsr.train(
            Steady, data=folder, steps=3, batch=2, log_every=1, engine=engine,
            out=tmp_path / f"run-{engine}",
        )  # fmt: skip
        losses.append([line["network/loss"] for line in run.metrics if "network/loss" in line])
    assert len(losses[0]) == 3
    # The same crops and weights; float32 sums in another order.
    np.testing.assert_allclose(*losses, rtol=1e-4)
