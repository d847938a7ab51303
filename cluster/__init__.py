"""The processes of a local cluster, its ZooKeeper server, and their supervision."""
