"""How long a training on Ray stands still when a worker is killed, and how many steps it loses."""
