"""Reward models: pairs of answers, each a text with a number, and the loss of their difference."""
