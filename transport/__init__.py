"""Bytes between processes: the control port, and the Kafka protocol."""
