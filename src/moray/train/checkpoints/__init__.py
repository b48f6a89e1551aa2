"""Checkpoints: writing, committing, finding and reading them."""
