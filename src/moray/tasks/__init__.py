"""What a row of a store means, for each task."""
