"""Adafactor, as an optimizer of training."""
