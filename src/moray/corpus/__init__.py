"""The world in, rows out: sources, their shapes, and the splits."""
