"""Record batches: the format (magic 0 to 2), reading, checking, building, compression."""
