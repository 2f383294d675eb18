"""The options of `jaxsr.detect` and `jaxsr.evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.runtime.options import AotOptions, ComputeOptions, LaneFoldingOptions, ModelOptions

if TYPE_CHECKING:
    from jaxsr.detection.detector import Detector


@dataclass(frozen=True, kw_only=True)
class DetectorOptions(ModelOptions, LaneFoldingOptions, ComputeOptions):
    """The network, and the size of its images."""

    model_required: ClassVar[bool] = False

    out: Path = Path("detected")
    """Folder for the results."""
    threshold: float = number(0.5, least=0, below=1)
    """Probability above which a pixel belongs to a target."""
    size: Literal["base", "native"] | None = None
    """Resize images to --base × --base, or use their native size. Default: as trained."""
    base: int | None = number(None, most=2**14)
    """Side in pixels for --size base. Default: as trained."""
    batch: int = number(8, most=2**14)
    """Images to compute at once."""
    scales: tuple[float, ...] = number((1.0,), least=0.1, most=4)
    """Sizes at which the network sees each image, as factors, such as 0.75 1 1.5; the mean of the
    probabilities counts. Finds targets of more sizes, in several times the time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_batch(self.batch)
        if not self.scales:
            raise InputError("scales must have a factor, such as 1; leave the option out")

    def detector(self) -> "Detector":
        """Loads the network, see `load_detector`; JAX's platform must be set already."""
        if self.model is None:
            print("weights: jaxsr's own, trained on drawn scenes alone; --model names others")
        from jaxsr.detection.detector import load_detector

        return load_detector(
            self.model,
            weights=self.weights,
            model_options=self.class_options(),
            trust_builder=self.trust_builder,
            options=self,
            batch=self.batch,
            lane_folding=self.lane_folding,
            evaluate=self.size,
            base=self.base,
            scales=self.scales,
        )


@dataclass(frozen=True, kw_only=True)
class DetectConfig(DetectorOptions, AotOptions):
    """Marks small targets in infrared images, folders of them, and videos."""

    inputs: tyro.conf.Positional[tuple[str, ...]] = ()
    """Images, videos, folders and globs."""
    least_px: int = number(1, least=1)
    """Leave out targets of fewer pixels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aot is not None and self.scales != (1.0,):
            raise InputError("--aot compiles the programs of one scale; leave --scales out")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(DetectorOptions):
    """Computes IoU, nIoU, precision, recall, F1, Pd, Fa and ROC of a detector on a split."""

    out: Path = Path("evaluated")
    """Folder for the results."""
    data: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DATA")]]
    """Folder of the data set, such as data/NUAA-SIRST."""
    split: str = "test"
    """test, train, or a file with a list of names."""
    lists: str | None = None
    """Folder of the split lists within the data set, if it has several."""
    mask_threshold: int | None = None
    """Gray level above which a mask pixel belongs to a target. Default: masks must be binary."""
    distance_px: float = 3.0
    """A target counts as found if a prediction's centroid is nearer than this."""
    curve_points: int = number(10, most=10**6)
    """Number of thresholds of the ROC."""
