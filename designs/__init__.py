"""The designs of replication that came before the controller, runnable beside it.

No part of a broker imports this package.
"""
