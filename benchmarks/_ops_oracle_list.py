"""All oracles of image functions; see `_ops_oracles`."""

from benchmarks._ops_oracle_pixels import PIXELS
from benchmarks._ops_oracle_places import PLACES
from benchmarks._ops_oracle_windows import FILTERS

ORACLES = [*PLACES, *FILTERS, *PIXELS]
