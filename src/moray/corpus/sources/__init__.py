"""Sources of documents, one module each."""
