"""Trackers: tools that show runs while they train, and keep what came of them."""
