"""ZooKeeper: the client, the codecs of znodes, the stores, and an embedded server."""
