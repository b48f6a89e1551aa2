"""A machine or a cluster, proven end to end: the stage `smoke_test`."""
