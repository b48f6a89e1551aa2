"""GPT-2 of 124 M parameters on one GPU: training, evaluation and generation."""
