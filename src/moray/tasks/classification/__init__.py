"""Text classification and regression: texts with labels to rows of tokens, and their loss."""
