"""Options of the damage to the small image of a training pair, see `degradation`."""

from dataclasses import dataclass

from jaxsr.errors import InputError

_WIDEST_BLUR = 5.0  # of a window of 31 pixels, half a crop of many


@dataclass(frozen=True, kw_only=True)
class Degradation:
    """Kinds of damage, each of a strength drawn uniformly for every sample."""

    blur: float = 0.0
    """Maximum standard deviation of a Gaussian blur, in pixels."""
    noise: float = 0.0
    """Maximum standard deviation of Gaussian noise, in levels of 255."""
    jpeg: tuple[int, int] | None = None
    """Lowest and highest quality of a JPEG file, 1 to 100; its colours are subsampled, 4:2:0."""
    share: float = 1.0
    """Share of the samples that are blurred, and of those with noise; JPEG is for all."""
    again: float = 0.0
    """Share of the samples that are then resized, sharpened and damaged a second time."""

    def __post_init__(self) -> None:
        if not 0 <= self.blur <= _WIDEST_BLUR:
            raise InputError(f"blur must be from 0 to {_WIDEST_BLUR:g} pixels, got {self.blur}")
        if not 0 <= self.noise <= 255:
            raise InputError(f"noise must be from 0 to 255 levels, got {self.noise}")
        if self.jpeg is not None and not 1 <= self.jpeg[0] <= self.jpeg[1] <= 100:
            raise InputError(
                "jpeg must be two qualities from 1 to 100, the lower one first, got "
                f"{self.jpeg[0]} {self.jpeg[1]}"
            )
        for name in ("share", "again"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be from 0 to 1, got {getattr(self, name)}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of damage that are not off."""
        return tuple(name for name in ("blur", "noise", "jpeg") if getattr(self, name))
