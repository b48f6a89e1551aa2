"""The results of a workflow as pandas data frames, for notebooks and for the report."""

from moray.results.frames import Results, load

__all__ = ["Results", "load"]
