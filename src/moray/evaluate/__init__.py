"""Evaluate a model: the likelihood of held-out text, and generated text."""
