"""Columns to fold by most channels: what fills 128 lanes, where that has been seen to pay.

A start, from the estimates of whole blocks in docs/lane-folding.md and of convolutions alone;
`benchmarks/lane_folding_table.py` writes this file anew from a search over folds on each chip.
"""

FOLDS = {
    "v5e": {2: 64, 4: 32, 8: 16, 16: 8, 32: 4, 48: 2},
    "v6e": {2: 64, 4: 32, 8: 16, 16: 8, 32: 4, 48: 2},
    "v5p": {2: 64, 4: 32, 8: 16, 16: 8, 32: 4, 48: 2},
}
