"""The model: where a base comes from, how it is loaded, and its loss."""
