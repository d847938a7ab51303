"""The processes of a local cluster, and their supervision."""
