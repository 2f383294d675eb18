"""Options of the damage to the small image of a training pair, see `degradation`."""

from dataclasses import dataclass

from jaxsr.errors import InputError
from jaxsr.interop.fields import check_fields, number

_WIDEST_BLUR = 5.0  # of a window of 31 pixels, half a crop of many


@dataclass(frozen=True, kw_only=True)
class Degradation:
    """Kinds of damage, each of a strength drawn uniformly for every sample."""

    blur: float = number(0.0, least=0, most=_WIDEST_BLUR)
    """Maximum standard deviation of a Gaussian blur, in pixels."""
    noise: float = number(0.0, least=0, most=255)
    """Maximum standard deviation of Gaussian noise, in levels of 255."""
    jpeg: tuple[int, int] | None = None
    """Lowest and highest quality of a JPEG file, 1 to 100; its colours are subsampled, 4:2:0."""
    share: float = number(1.0, least=0, most=1)
    """Share of the samples that are blurred, and of those with noise; JPEG is for all."""
    again: float = number(0.0, least=0, most=1)
    """Share of the samples that are then resized, sharpened and damaged a second time."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.jpeg is not None and not 1 <= self.jpeg[0] <= self.jpeg[1] <= 100:
            raise InputError(
                "jpeg must be two qualities from 1 to 100, the lower one first, got "
                f"{self.jpeg[0]} {self.jpeg[1]}"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of damage that are not off."""
        return tuple(name for name in ("blur", "noise", "jpeg") if getattr(self, name))
