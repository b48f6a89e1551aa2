"""Learning from answers that are good or bad, without pairs: Kahneman-Tversky optimization."""
