"""Measures a design: what one failure costs, counted by ZooKeeper itself."""
