"""Reassignment of partitions to other brokers (KIP-455)."""
