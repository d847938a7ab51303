"""What the control plane keeps in ZooKeeper, by subject."""
