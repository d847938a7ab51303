"""Partition data on one broker."""
