"""Lane folding: columns of narrow images side by side in the lanes of a TPU."""
