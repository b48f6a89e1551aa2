"""What computes a step: the module, its optimizer, and their distribution over workers."""
