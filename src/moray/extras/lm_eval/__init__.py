"""Benchmarks of lm-evaluation-harness: the stage `benchmark`."""
