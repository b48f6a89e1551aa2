"""Start-up: seconds from the command to the first optimizer step, by phase, with a warm cache."""
