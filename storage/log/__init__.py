"""One log: its segments with their indexes, leader epochs and producer state."""
