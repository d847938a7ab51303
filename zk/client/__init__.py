"""The ZooKeeper client: sessions, watches and many operations in one round trip."""
