"""Comparisons of each stage with the plain libraries, on a sample of the user's own rows."""
