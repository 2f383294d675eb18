"""Pictures of several sizes on one canvas against each of them alone, in plain torch."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxsr.interop import to_jax
from jaxsr.models.mshnet.canvas import WHOLE, Extents
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import MSHNet

SIZES = [(32, 48), (64, 80), (16, 16), (48, 16)]
CANVAS = (64, 96)


def _network(**options):
    torch.manual_seed(0)
    network = MSHNet(MSHNetConfig(**options))
    with torch.no_grad():
        for _ in range(2):  # running statistics that are not 0 and 1
            network(3 * torch.randn(2, 3, 64, 64) + 1)
    return network.eval()


def _together(pictures):
    """On one canvas, which holds garbage where no picture is."""
    canvas = 5 * torch.randn(len(pictures), 3, *CANVAS)
    for row, picture in enumerate(pictures):
        canvas[row, :, : picture.shape[1], : picture.shape[2]] = picture
    return canvas, torch.tensor([picture.shape[1:] for picture in pictures], dtype=torch.int32)


@pytest.mark.parametrize(
    ("engine", "heads"), [("torch", "final"), ("torch", "warmup"), ("torch", "all"), ("jax", "all")]
)
def test_every_picture_gets_the_answer_that_it_gets_alone(engine, heads):
    scales = 5 if engine == "torch" else 3  # XLA takes its time to compile all five
    widths, blocks = (8, 12, 16, 20, 24)[:scales], (1, 2, 1, 1, 1)[:scales]
    network = _network(widths=widths, blocks=blocks, attention_ratio=4)
    pictures = [torch.randn(3, *size) for size in SIZES]
    canvas, sizes = _together(pictures)
    with torch.no_grad():
        if engine == "torch":
            got = network(canvas, heads, sizes)
        else:
            model = to_jax(network)
            run = jax.jit(lambda x, s: model.apply(model.params, model.buffers, x, heads, s)[0])
            got = run(canvas.numpy(), sizes.numpy())
        for row, picture in enumerate(pictures):
            want = network(picture[None], heads)
            outputs = (got, want) if heads == "all" else ((got,), (want,))
            for ours, theirs in zip(*outputs, strict=True):
                height, width = theirs.shape[2:]
                # Logits of some ten; 30 layers of float32 summed in another order.
                np.testing.assert_allclose(
                    np.asarray(ours)[row, 0, :height, :width], theirs[0, 0].numpy(), atol=1e-4
                )


@pytest.mark.sample(6)
@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(1, 1), (1, 5), (7, 2), (13, 16)])
def test_enlarging_is_torchs_within_the_extent_and_nothing_beyond(factor, size):
    x = torch.zeros(1, 3, 16, 16)
    x[..., : size[0], : size[1]] = torch.randn(1, 3, *size)
    got = Extents(torch.tensor([size]), 16, 16).enlarge(x, factor)
    want = F.interpolate(
        x[..., : size[0], : size[1]], scale_factor=factor, mode="bilinear", align_corners=True
    )
    inside = got[..., : factor * size[0], : factor * size[1]]
    torch.testing.assert_close(inside, want, rtol=0, atol=1e-5)
    got[..., : factor * size[0], : factor * size[1]] = 0
    assert not got.any() and got.shape == (1, 3, 16 * factor, 16 * factor)


def test_pooling_sees_the_extent_alone():
    x = torch.full((2, 4, 8, 8), 100.0)
    extents = Extents(torch.tensor([[3, 5], [8, 1]]), 8, 8)
    x[0, :, :3, :5], x[1, :, :, :1] = torch.randn(4, 3, 5), -torch.rand(4, 8, 1)
    for row, part in enumerate((x[:1, :, :3, :5], x[1:, :, :, :1])):
        torch.testing.assert_close(extents.most(x)[row], WHOLE.most(part)[0])
        torch.testing.assert_close(extents.mean(extents.cut(x))[row], WHOLE.mean(part)[0])


def test_sizes_are_for_evaluation():
    network = _network(widths=(4, 6), blocks=(1, 1), attention_ratio=2).train()
    with pytest.raises(ValueError, match="are for evaluation"):
        network(torch.zeros(1, 3, 16, 16), "final", torch.tensor([[16, 16]]))
