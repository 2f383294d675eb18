"""Losses of training, by name: torch functions of a prediction and its target."""
