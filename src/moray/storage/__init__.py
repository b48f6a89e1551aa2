"""Where the state of a run lies: its checkpoints, records and locks, in a folder or elsewhere."""
