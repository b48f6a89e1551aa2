"""Sweeps: the best of their runs, and comparisons between settings over seeds."""
