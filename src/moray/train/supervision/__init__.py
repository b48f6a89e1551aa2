"""Supervision of a run: locks, requests, stalls, failures, progress."""
