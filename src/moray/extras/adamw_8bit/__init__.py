"""Moments of AdamW in 8 bits, as an optimizer of training."""
