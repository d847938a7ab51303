"""Logs on the disks of one broker: segments, indexes, checkpoints, recovery."""
