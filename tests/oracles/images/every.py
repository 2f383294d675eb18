"""All oracles of image functions; see `oracle.py`."""

from tests.oracles.images.colours import COLOURS
from tests.oracles.images.pixels import PIXELS
from tests.oracles.images.places import PLACES
from tests.oracles.images.resize import RESIZES
from tests.oracles.images.windows import FILTERS

ORACLES = [*RESIZES, *PLACES, *FILTERS, *PIXELS, *COLOURS]
