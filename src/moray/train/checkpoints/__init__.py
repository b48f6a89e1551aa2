"""Checkpoints: written, committed, found again, and read back."""
