"""Columns to fold by most channels: made by `python -m benchmarks.lane_folding_table`."""

FOLDS = {
    "v5e": {2: 64, 4: 32, 8: 16, 16: 8, 24: 4, 28: 4, 32: 4, 48: 2, 64: 2},
    "v6e": {2: 64, 4: 32, 8: 16, 16: 8, 24: 8, 28: 4, 32: 4, 48: 2, 64: 2},
    "v5p": {2: 32, 4: 32, 8: 16, 16: 8, 24: 4, 28: 4, 32: 4, 48: 2, 64: 2},
}
