"""Checks what a machine needs to train: the command `moray doctor`."""
