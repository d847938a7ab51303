"""ZooKeeper: the client, the codecs of znodes, and the stores."""
