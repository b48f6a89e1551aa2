"""Weights & Biases, as a tracker of runs."""
