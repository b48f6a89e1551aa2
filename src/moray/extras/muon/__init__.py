"""Muon, as an optimizer of training."""
