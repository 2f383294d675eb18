"""AlexNet's convolutions as torchvision has them (Krizhevsky 2014, arXiv:1404.5997).

Images are NCHW, normalised as the caller's method asks. Parameter names are torchvision's
(`features.0.weight`, …), so that its files load; the classifier is left out.
"""

from torch import Tensor, nn

from jaxsr.errors import InputError


class AlexNet(nn.Module):
    """Features of an image after each of the five convolutions."""

    widths = (64, 192, 384, 256, 256)

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
        )

    def forward(self, image_BCHW: Tensor) -> list[Tensor]:
        """The five activations, in order.

        Raises:
          ValueError: not (B, 3, H, W), or a side below 31 px, of which the poolings leave nothing.
        """
        if image_BCHW.ndim != 4 or image_BCHW.shape[1] != 3 or min(image_BCHW.shape[2:]) < 31:
            raise InputError(
                "AlexNet takes (batch, 3, height, width) of at least 31×31 px, got "
                f"{tuple(image_BCHW.shape)}; use larger images"
            )
        outputs, x = [], image_BCHW
        for layer in self.features:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                outputs.append(x)
        return outputs
