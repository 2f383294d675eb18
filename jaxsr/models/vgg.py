"""VGG16's convolutions (Simonyan and Zisserman 2015, arXiv:1409.1556), configuration D.

Images are NCHW, normalised as the caller's method asks. Parameter names are torchvision's
(`features.0.weight`, …), so that its files load; the classifier is left out.
"""

from torch import Tensor, nn

from jaxsr.errors import InputError

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""(features, convolutions) between one pooling and the next."""

TAPS = ("relu1_2", "relu2_2", "relu3_3", "relu4_3", "relu5_3")
"""Names of each stage's last activation, in order."""


class VGG16(nn.Module):
    """Features of an image at the end of each of the five stages."""

    widths = tuple(width for width, _ in STAGES)

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential()
        self.taps: list[int] = []
        channels = 3
        for stage, (width, convolutions) in enumerate(STAGES):
            if stage:
                self.features.append(nn.MaxPool2d(2))
            for _ in range(convolutions):
                # Not in place: the activation before it may be one that a loss still reads.
                self.features.extend((nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()))
                channels = width
            self.taps.append(len(self.features) - 1)

    def forward(self, image_BCHW: Tensor) -> list[Tensor]:
        """The activations named in `TAPS`, each at half the resolution of the one before.

        Raises:
          ValueError: not (B, 3, H, W), or a side below 16 px, of which the poolings leave none.
        """
        if image_BCHW.ndim != 4 or image_BCHW.shape[1] != 3 or min(image_BCHW.shape[2:]) < 16:
            raise InputError(
                "VGG16 takes (batch, 3, height, width) of at least 16×16 px, got "
                f"{tuple(image_BCHW.shape)}; use a larger crop"
            )
        outputs, x = [], image_BCHW
        for index, layer in enumerate(self.features):
            x = layer(x)
            if index in self.taps:
                outputs.append(x)
        return outputs
