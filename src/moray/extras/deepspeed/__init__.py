"""ZeRO by DeepSpeed, as a strategy of training."""
