"""Runs on text that learn from the predictions of a teacher too."""
