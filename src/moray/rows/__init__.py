"""Rows of any type: how they are stored, which of them make up a step, how they are loaded."""
