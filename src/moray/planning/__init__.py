"""How much memory a run needs, before it starts: `moray plan`."""
