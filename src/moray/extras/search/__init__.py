"""Searches for the settings of a run with the lowest validation loss: the stage `search`."""
