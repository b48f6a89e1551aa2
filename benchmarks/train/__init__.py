"""Training: tokens per second against the plain alternatives, and what each technique adds."""
