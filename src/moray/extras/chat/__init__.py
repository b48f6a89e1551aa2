"""Talks to models on the terminal: the command `moray chat`."""
