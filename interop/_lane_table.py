"""Columns to fold by most channels: what fills 128 lanes, where that has been seen to pay.

Made by hand. `benchmarks/lane_folding_table.py` writes this file anew from a search over folds on
each chip; docs/lane-folding.md says how far that search has come.
"""

FOLDS = {
    "v5e": {2: 64, 4: 32, 8: 16, 16: 8, 32: 4, 48: 2},
    "v6e": {2: 64, 4: 32, 8: 16, 16: 8, 32: 4, 48: 2},
    "v5p": {2: 64, 4: 32, 8: 16, 16: 8, 32: 4, 48: 2},
}
