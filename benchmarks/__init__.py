"""What is measured, against whom. Each package is an experiment: `python -m benchmarks.NAME`."""
