"""What checkpoints cost a run: wall time with one every 20 steps, and with none."""
