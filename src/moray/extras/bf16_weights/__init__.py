"""Trained weights in bf16, whose steps are rounded stochastically."""
