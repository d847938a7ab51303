"""Where the replicas of partitions go."""
