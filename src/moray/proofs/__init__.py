"""Comparisons of what moray makes with what the plain libraries make of the same rows."""
