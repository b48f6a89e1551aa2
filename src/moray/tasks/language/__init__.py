"""Language modelling: documents to packed tokens, and the loss of the trained ones."""
