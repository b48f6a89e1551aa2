"""Searches for better settings of a run."""
