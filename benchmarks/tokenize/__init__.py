"""Tokenising: speed against the tokenizer alone and against `datasets`, and memory by size."""
