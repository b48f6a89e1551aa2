"""The memory of a run, before it trains: `moray plan`, and `micro_batch_size: auto`."""
