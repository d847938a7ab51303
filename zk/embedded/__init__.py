"""A ZooKeeper server as a child process, from the jars that PySpark carries."""
