"""Models: obtaining a base model, loading it, and its loss."""
