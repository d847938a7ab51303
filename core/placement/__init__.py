"""Replica placement: the brokers that hold the replicas of new partitions."""
