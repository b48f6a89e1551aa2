"""Learning from preferences: pairs of answers to packed tokens, and the loss of their margins."""
