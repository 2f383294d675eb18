"""Convolutions of AlexNet and VGG16, whose features perceptual distances compare.

AlexNet is torchvision's (Krizhevsky 2014, arXiv:1404.5997), VGG16 is configuration D (Simonyan and
Zisserman 2015, arXiv:1409.1556). Images are NCHW, normalised by the caller. Parameter names are
torchvision's (`features.0.weight`, …), so that its files load; the classifier is left out.
"""

from torch import Tensor, nn

from jaxsr.errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Trunk(nn.Module):
    """Features of an image after some of its layers."""

    title: str
    smallest_px: int
    """Least side of an image; the poolings leave nothing of a smaller one."""
    widths: tuple[int, ...]
    """Channels of each feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential()
        self.taps: list[int] = []
        """Positions of the layers whose outputs are the features."""

    def forward(self, image_BCHW: Tensor) -> list[Tensor]:
        """The feature maps, in order.

        Raises:
          ValueError: not (B, 3, H, W), or a side is below `smallest_px`.
        """
        least, shape = self.smallest_px, tuple(image_BCHW.shape)
        if len(shape) != 4 or shape[1] != 3 or min(shape[2:]) < least:
            raise InputError(
                f"{self.title} takes (batch, 3, height, width) of at least {least}×{least} px, got "
                f"{shape}; use larger images"
            )
        outputs, x = [], image_BCHW
        for index, layer in enumerate(self.features):
            x = layer(x)
            if index in self.taps:
                outputs.append(x)
        return outputs

    def _convolve(self, inputs: int, outputs: int, side: int, *, stride: int = 1) -> None:
        # ReLU not in place: the activation before it may be one that a loss still reads.
        padding = side // 2 if stride == 1 else 2
        self.features.extend((nn.Conv2d(inputs, outputs, side, stride, padding), nn.ReLU()))


class AlexNet(Trunk):
    """Features after each of the five convolutions."""

    title, smallest_px = "AlexNet", 31
    widths = (64, 192, 384, 256, 256)

    def __init__(self) -> None:
        super().__init__()
        for index, (inputs, outputs) in enumerate(
            zip((3, *self.widths), self.widths, strict=False)
        ):
            if index in (1, 2):
                self.features.append(nn.MaxPool2d(3, stride=2))
            self._convolve(inputs, outputs, (11, 5, 3, 3, 3)[index], stride=1 if index else 4)
            self.taps.append(len(self.features) - 1)


class VGG16(Trunk):
    """relu1_2, relu2_2, relu3_3, relu4_3 and relu5_3, each at half the resolution of the last."""

    title, smallest_px = "VGG16", 16
    widths = (64, 128, 256, 512, 512)

    def __init__(self) -> None:
        super().__init__()
        channels = 3
        for stage, width in enumerate(self.widths):
            if stage:
                self.features.append(nn.MaxPool2d(2))
            for _ in range(2 if stage < 2 else 3):
                self._convolve(channels, width, 3)
                channels = width
            self.taps.append(len(self.features) - 1)


def as_rgb(image_BCHW: Tensor) -> Tensor:
    """Three channels of one or three.

    Raises:
      ValueError: the images have another number of channels.
    """
    if image_BCHW.ndim != 4 or image_BCHW.shape[1] not in (1, 3):
        raise InputError(
            f"images must be (batch, 1 or 3, height, width), got {tuple(image_BCHW.shape)}"
        )
    return image_BCHW if image_BCHW.shape[1] == 3 else image_BCHW.expand(-1, 3, -1, -1)


def check_equal_shapes(image: Tensor, target: Tensor, distance: str) -> None:
    """Raises `InputError` where a distance would broadcast one image to the other's shape."""
    if image.shape != target.shape:
        raise InputError(
            f"images are {tuple(image.shape)} and {tuple(target.shape)}; {distance} compares equal "
            "shapes"
        )
