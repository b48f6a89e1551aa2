"""Training: the driver starts workers, the workers run the loop."""
