"""The state of a run: its checkpoints, records and locks, in a folder or elsewhere."""
