"""ZooKeeper: the client, the znodes, and the store the controller writes through."""
