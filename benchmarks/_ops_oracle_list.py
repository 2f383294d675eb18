"""All oracles of image functions; see `_ops_oracles`."""

from benchmarks._ops_oracle_colours import COLOURS
from benchmarks._ops_oracle_pixels import PIXELS
from benchmarks._ops_oracle_places import PLACES
from benchmarks._ops_oracle_resize import RESIZES
from benchmarks._ops_oracle_windows import FILTERS

ORACLES = [*RESIZES, *PLACES, *FILTERS, *PIXELS, *COLOURS]
