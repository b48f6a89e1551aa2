"""Metrics of generated text, each a module that `evaluate.load` can load by its path."""
