"""Rows whose words are nearly those of another row, by MinHash."""
