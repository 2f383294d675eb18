"""Columns to fold by most channels.

`benchmarks/lane_folding_table.py` writes this file anew where its search is complete. v5e's row is
what it found; v6e and v5p have the same until then (docs/lane-folding.md says how far it has come).
"""

FOLDS = {
    "v5e": {2: 64, 4: 32, 8: 16, 16: 8, 24: 8, 32: 4, 48: 2, 64: 2},
    "v6e": {2: 64, 4: 32, 8: 16, 16: 8, 24: 8, 32: 4, 48: 2, 64: 2},
    "v5p": {2: 64, 4: 32, 8: 16, 16: 8, 24: 8, 32: 4, 48: 2, 64: 2},
}
