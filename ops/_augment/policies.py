"""Learnt and trivial policies, with torchvision's tables of magnitudes.

| step | source |
|---|---|
| `RandAugment` | Cubuk et al., CVPR workshops 2020 |
| `TrivialAugment` | Müller & Hutter, ICCV 2021: the wide space |
| `AugMix` | Hendrycks et al., ICLR 2020 |
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import is_integer, number
from jaxsr.ops._augment.batch import (
    Augmented,
    CheckedStep,
    Layout,
    check_reading,
    expanded,
    folded,
    log_gamma,
    size_of,
)
from jaxsr.ops._augment.operations import IDENTITY, Space, apply_operation
from jaxsr.ops._images import in_dtype_of, real_dtype
from jaxsr.ops._typed_jax import arange, scan, zeros_like

_AUGMIX_BINS = 10
_AUGMIX_DEPTH = 3  # the greatest of a chain, where it is drawn


@dataclass(frozen=True, kw_only=True)
class RandAugment(CheckedStep):
    """Some operations in a row, all of one magnitude, as torchvision's transform of this name."""

    num_ops: int = 2
    magnitude: int = 9
    """From 0 to `num_magnitude_bins` - 1."""
    num_magnitude_bins: int = 31
    method: str = "nearest"
    fill: float = 0.0

    def _check_fields(self) -> None:
        _check_counts(num_ops=self.num_ops, num_magnitude_bins=self.num_magnitude_bins)
        if not is_integer(self.magnitude) or not 0 <= self.magnitude < self.num_magnitude_bins:
            last = self.num_magnitude_bins - 1
            raise ValueError(f"magnitude must be 0 to {last}, got {self.magnitude!r}")
        check_reading(self.method, self.fill)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Masks, boxes and points move along."""
        height, width = size_of(batch, layout)
        bins = self.num_magnitude_bins
        space = Space(rand_augment_tables(bins, height, width), bins)

        def change(batch: Augmented, place: jax.Array) -> tuple[Augmented, None]:
            drawn = space.draw(folded(keys, place), self.magnitude, None)
            return apply_operation(batch, layout, *drawn, self.method, self.fill), None

        return scan(change, batch, arange(self.num_ops))[0]


@dataclass(frozen=True, kw_only=True)
class TrivialAugment(CheckedStep):
    """One operation of any magnitude, as torchvision's TrivialAugmentWide."""

    num_magnitude_bins: int = 31
    method: str = "nearest"
    fill: float = 0.0

    def _check_fields(self) -> None:
        _check_counts(num_magnitude_bins=self.num_magnitude_bins)
        check_reading(self.method, self.fill)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Masks, boxes and points move along."""
        bins = self.num_magnitude_bins
        drawn = Space(trivial_augment_tables(bins), bins).draw(keys, 0, bins)
        return apply_operation(batch, layout, *drawn, self.method, self.fill)


@dataclass(frozen=True, kw_only=True)
class AugMix(CheckedStep):
    """Blends of chains of operations, as torchvision's; integers are rounded, not cut off."""

    severity: int = 3
    """Magnitudes are drawn from the first so many of 10 steps."""
    mixture_width: int = 3
    """Chains."""
    chain_depth: int | None = None
    """Operations in a chain. Default: 1 to 3, drawn for each."""
    alpha: float = 1.0
    """Parameter of the Dirichlet distributions of the weights of the chains and of the image."""
    all_ops: bool = True
    """Whether brightness, contrast, colour and sharpness are among them."""
    method: str = "bilinear"
    fill: float = 0.0

    def _check_fields(self) -> None:
        _check_counts(severity=self.severity, mixture_width=self.mixture_width)
        if self.severity > _AUGMIX_BINS:
            raise ValueError(f"severity must be 1 to {_AUGMIX_BINS}, got {self.severity}")
        if self.chain_depth is not None:
            _check_counts(chain_depth=self.chain_depth)
        number(self.alpha, "alpha", above=0)
        check_reading(self.method, self.fill)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Refuses masks, boxes and points: each chain moves pixels elsewhere."""
        if not (batch.masks is None and batch.boxes is None and batch.points is None):
            raise ValueError(
                "AugMix blends images that are moved apart; leave masks, boxes and points out"
            )
        height, width = size_of(batch, layout)
        space = Space(augmix_tables(height, width, self.all_ops), _AUGMIX_BINS)
        real = batch.images.astype(real_dtype(batch.images))
        own, weights = self._weights(folded(keys, 0))

        def chain(total: jax.Array, place: jax.Array) -> tuple[jax.Array, None]:
            chain_keys = folded(keys, place + 1)
            depths = self._depths(folded(chain_keys, 0))

            def change(images: jax.Array, level: jax.Array) -> tuple[jax.Array, None]:
                drawn, magnitude = space.draw(folded(chain_keys, level + 1), 0, self.severity)
                drawn = jnp.where(level < depths, drawn, IDENTITY)
                plain = Augmented(images)
                out = apply_operation(plain, layout, drawn, magnitude, self.method, self.fill)
                return out.images, None

            longest = self.chain_depth or _AUGMIX_DEPTH
            images, _ = scan(change, batch.images, arange(longest))
            return total + expanded(weights[:, place], real) * images, None

        mixed, _ = scan(chain, expanded(own, real) * real, arange(self.mixture_width))
        return batch._replace(images=in_dtype_of(batch.images, mixed))

    def _weights(self, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(N,) of the images themselves and (N, chains)."""

        def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            pair_key, chains_key = jax.random.split(key)
            own, other = jax.nn.softmax(log_gamma(pair_key, self.alpha, 2))
            chains = jax.nn.softmax(log_gamma(chains_key, self.alpha, self.mixture_width))
            return own, other * chains

        return jax.vmap(draw)(keys)

    def _depths(self, keys: jax.Array) -> jax.Array:
        def draw(key: jax.Array) -> jax.Array:
            return jax.random.randint(key, (), 1, _AUGMIX_DEPTH + 1)

        drawn = jax.vmap(draw)(keys)
        return drawn if self.chain_depth is None else zeros_like(drawn) + self.chain_depth


Tables = dict[str, np.ndarray | None]


def rand_augment_tables(bins: int, height: int, width: int) -> Tables:
    """Magnitudes of every operation, by torchvision's rule."""
    return {
        "Identity": None,
        **_moves(bins, 0.3, 150 / 331 * width, 150 / 331 * height, 30.0),
        **_blends(bins, 0.9),
        **_levels(bins, 8, 4),
    }


def trivial_augment_tables(bins: int) -> Tables:
    """Magnitudes of every operation, by torchvision's rule."""
    return {
        "Identity": None,
        **_moves(bins, 0.99, 32.0, 32.0, 135.0),
        **_blends(bins, 0.99),
        **_levels(bins, 8, 6),
    }


def augmix_tables(height: int, width: int, all_ops: bool) -> Tables:
    """Magnitudes of every operation, by torchvision's rule."""
    return {
        **_moves(_AUGMIX_BINS, 0.3, width / 3, height / 3, 30.0),
        **_levels(_AUGMIX_BINS, 4, 4),
        **(_blends(_AUGMIX_BINS, 0.9) if all_ops else {}),
    }


def _moves(bins: int, shear: float, across: float, down: float, turn: float) -> Tables:
    limits = {
        "ShearX": shear,
        "ShearY": shear,
        "TranslateX": across,
        "TranslateY": down,
        "Rotate": turn,
    }
    return {name: np.linspace(0, limit, bins) for name, limit in limits.items()}


def _blends(bins: int, most: float) -> Tables:
    names = ("Brightness", "Color", "Contrast", "Sharpness")
    return dict.fromkeys(names, np.linspace(0, most, bins))


def _levels(bins: int, bits: int, dropped: int) -> Tables:
    steps = np.arange(bins) / max((bins - 1) / dropped, 1e-9)
    return {
        "Posterize": np.round(bits - steps),
        "Solarize": np.linspace(1, 0, bins),
        "AutoContrast": None,
        "Equalize": None,
    }


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not is_integer(count) or count < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {count!r}")
