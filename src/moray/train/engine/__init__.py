"""What computes a step: the module, its optimizer, and how both are spread over workers."""
