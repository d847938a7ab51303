"""The reads and writes of the control plane in ZooKeeper, by subject."""
