"""Frozen bases of adapters in 4 and 8 bits."""
