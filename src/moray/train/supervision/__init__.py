"""What watches over a run: locks, requests, stalls, failures, progress."""
