"""What text, its tokens and its scores are compared with, by plain transformers."""
