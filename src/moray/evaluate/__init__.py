"""Judging a model: likelihood of held-out text, and what it writes."""
