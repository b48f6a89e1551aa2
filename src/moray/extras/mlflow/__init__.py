"""MLflow, as a tracker of runs."""
