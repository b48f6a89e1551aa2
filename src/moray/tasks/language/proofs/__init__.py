"""Comparisons of text, its tokens and its scores with plain transformers."""
