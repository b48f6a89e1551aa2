"""How models are compared on held-out rows, for each task."""
