"""GPT-2 of 124 M parameters on one GPU: speed, share of the peak, memory."""
