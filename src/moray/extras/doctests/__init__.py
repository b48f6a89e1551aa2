"""The metric `doctests`: whether functions pass the examples of their docstrings."""
