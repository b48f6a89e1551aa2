"""From sources to documents: readers, formats and splits."""
