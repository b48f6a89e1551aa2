"""Configs of other tools, as overlays of this one's: the command `moray import`."""
