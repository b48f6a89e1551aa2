"""Checkpoints of a run: saved, loaded, kept, resumed from, and continued from another run's."""
