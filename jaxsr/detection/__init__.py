"""Using a trained detector: finding targets in images, and testing it on a split."""
