"""The report: one page about all runs, made from the files of their results alone."""
