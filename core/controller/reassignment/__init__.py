"""Moving partitions to other brokers (KIP-455)."""
