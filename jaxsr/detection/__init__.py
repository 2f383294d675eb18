"""Using a trained detector: finding targets in pictures, and testing it on a split."""
